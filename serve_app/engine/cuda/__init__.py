"""Fused layers on a GPU, by kernels in Triton."""
