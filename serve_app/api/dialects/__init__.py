"""One folder per protocol, which parses bodies and renders deltas and errors, without sockets or backends."""
