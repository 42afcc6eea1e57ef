"""A decoder's layers as one fused stack: which models, the structure and the checks. For any device."""
