"""How deltas travel from a model replica to a gateway.

A gateway and a replica share one TCP connection for the deltas of all requests between the two. An engine
step is one frame, so a token costs a microsecond or two, not a remote call. `receiver` is the gateway's end,
`sender` the replica's, `link` the connection, and `frames` the wire format. Depends on neither Ray nor HTTP.
"""
