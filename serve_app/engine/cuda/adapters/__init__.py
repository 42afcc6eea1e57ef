"""Low-rank adapters on a GPU, in one piece of memory, and kernels that find the adapter of each row."""
