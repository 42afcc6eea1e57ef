"""One server on one machine, from its start to its end: the processes that start, watch and stop it, and
clean up."""
