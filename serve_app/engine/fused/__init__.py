"""A decoder's layers as one fused stack: which models, the structure and the checks. Of any device."""
