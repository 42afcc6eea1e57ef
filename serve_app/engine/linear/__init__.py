"""Linear layers with packed weights, and which linears of a model can be packed."""
