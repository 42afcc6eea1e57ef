"""The inputs of a request to the engine: checked, and ready for use as tensors, drafts and processors."""
