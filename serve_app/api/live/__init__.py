"""Live figures of one gateway and of all."""
