"""The control plane: endpoints, keys, usage and rollouts at run time, on a database.

Does not depend on HTTP or Ray.
"""
