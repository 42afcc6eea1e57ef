"""Vectors instead of tokens: batches without padding, encoders, pooling."""
