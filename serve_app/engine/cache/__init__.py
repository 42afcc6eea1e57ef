"""The paged KV cache as integers: blocks, block tables and the prefix index. Knows no tensor."""
