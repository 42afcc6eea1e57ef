"""Fuses a decoder's layers into one stack: models that allow it, structure, and checks. For any device."""
