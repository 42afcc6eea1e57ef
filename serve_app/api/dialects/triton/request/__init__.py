"""Turns TensorRT-LLM's input tensors, with one row per prompt, into requests."""
