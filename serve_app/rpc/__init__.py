"""KServe v2 over gRPC: the protocol's messages, and a server that answers them as the HTTP routes do."""
