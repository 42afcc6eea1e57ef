"""Inputs of a request to the engine: their checks, and tensors, draft and processors in their used form."""
