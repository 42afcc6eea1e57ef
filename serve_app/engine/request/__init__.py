"""What a request brings to the engine: its checks, and its tensors, draft and processors as they are used."""
