"""A self-hosted foundation-model server on Ray Serve."""

__version__ = "0.1.0"
