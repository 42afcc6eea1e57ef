"""The part of a model that one of several ranks keeps: its configuration, and the cuts of its tensors.

Nothing here depends on processes or on how ranks talk to each other.
"""
