"""Guarded rollouts, the comparison of served entities, and what clients think of answers."""
