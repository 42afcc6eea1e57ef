"""One model on several ranks: rank 0 schedules and samples, and every rank runs its part of each step."""
