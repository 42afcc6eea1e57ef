"""A folder for each protocol: parse a body, render deltas, render errors. Depends on no sockets and no
backend."""
