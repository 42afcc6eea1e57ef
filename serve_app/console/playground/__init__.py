"""The Playground: what can be asked of an endpoint, in which protocol, and the same request as code."""
