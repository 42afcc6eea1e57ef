"""A model whose replica is several processes: how they start, and the process of a rank other than 0."""
