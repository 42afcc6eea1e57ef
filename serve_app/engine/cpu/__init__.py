"""The fast forward of a CPU: packed linears and the decoder stack as one native call."""
