"""The experts of mixtures on a CPU: packed weights behind transformers' experts interface."""
