"""One folder per protocol, to parse bodies and to render deltas and errors, without sockets or backends."""
