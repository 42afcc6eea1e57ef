"""Fused layers on a GPU, by kernels in Triton, and graphs of decode steps."""
