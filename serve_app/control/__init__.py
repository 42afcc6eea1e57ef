"""The control plane: endpoints, keys, usage and rollouts at run time, on a database.

Knows no HTTP and no Ray.
"""
