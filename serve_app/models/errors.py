"""The one error of loading a model."""

from __future__ import annotations


class ModelLoadError(Exception):
    """A model cannot be served. The message tells the operator what is wrong and what to do next."""
