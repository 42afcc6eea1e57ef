"""A trial of the Triton kernels on this machine's GPU, in another process, before they serve a model."""
