"""Pages about the gateway and its models."""
