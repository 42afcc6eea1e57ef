"""Functions with a state on a GPU, in Triton."""
