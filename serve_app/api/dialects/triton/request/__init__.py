"""TensorRT-LLM's input tensors, one row a prompt, to requests."""
