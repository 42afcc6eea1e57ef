"""One protocol a module: parse a body, render deltas, render errors. Knows no sockets and no backend."""
