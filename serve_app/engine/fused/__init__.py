"""A decoder's layers as one fused stack: models that can have it, structure, and checks. For any device."""
