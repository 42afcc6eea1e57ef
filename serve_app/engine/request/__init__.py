"""The inputs of a request to the engine: their checks, and tensors, drafts and processors ready for use."""
