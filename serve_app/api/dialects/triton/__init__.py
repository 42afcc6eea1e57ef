"""TensorRT-LLM behind Triton: the tensors of InferenceRequest over KServe v2."""
