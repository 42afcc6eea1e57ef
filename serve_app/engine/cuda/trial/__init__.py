"""The Triton kernels tried on this machine's GPU before a model is served by them, in another process."""
