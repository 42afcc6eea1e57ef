"""The paged KV cache as integers: blocks, block tables and the prefix index. No tensors are used."""
