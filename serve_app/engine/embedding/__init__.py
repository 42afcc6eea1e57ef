"""Vectors instead of tokens: batches without padding, encoders, and pooling."""
