"""The gateway's deployment: its replica, and how it reaches the replicas of models."""
