"""One request and its answer, the same for every dialect: permit, budget, entity, deltas, settlement."""
