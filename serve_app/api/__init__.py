"""HTTP in front of a `Backend`: bodies in, `GenerateRequest`s out, deltas in, bytes out. No Ray here."""
