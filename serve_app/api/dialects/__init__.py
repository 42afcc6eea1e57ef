"""A folder for each protocol: parse a body, render deltas, render errors. Knows no sockets and no backend."""
