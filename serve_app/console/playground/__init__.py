"""The Playground: the protocols and options of an endpoint, and the same request as code."""
