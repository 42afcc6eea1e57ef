"""Low-rank adapters on a GPU: all of them in one piece of memory, and kernels that find each row's own."""
