"""A model's deployment: its replica, its scaling, and its part of the machine."""
