"""Text <-> token ids of one model: its files, encoding and decoding, control tokens, bounds on length."""
