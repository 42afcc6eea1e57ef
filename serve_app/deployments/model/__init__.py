"""A model's deployment: its replica, its scaling, and what the machine gives it."""
