"""The gateway's deployment: its replica, and its ways to the replicas of models."""
