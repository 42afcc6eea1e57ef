"""Rollouts, shadows, comparisons and feedback."""
