"""Guarded rollouts, the comparison of served entities, and clients' feedback."""
