"""How deltas travel from a model replica to a gateway.

One TCP connection for each gateway-replica pair carries the deltas of all
requests between the two, one frame for each engine step: a token costs a
microsecond or two, not a remote call. `receiver` is the gateway's end, `sender` the replica's, `link` the
connection, and `frames` the wire format. Depends on neither Ray nor HTTP.
"""
