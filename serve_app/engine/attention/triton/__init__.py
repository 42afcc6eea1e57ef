"""Paged attention by kernels of our own in Triton."""
