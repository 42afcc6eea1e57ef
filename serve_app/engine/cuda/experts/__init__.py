"""The experts of mixtures on a GPU: one product for all experts of a layer, in Triton."""
