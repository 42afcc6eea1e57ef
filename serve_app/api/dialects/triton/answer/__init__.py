"""Answers as TensorRT-LLM's output tensors."""
