"""The parts of a model that TensorRT-LLM's backend serves, each under a name of its own."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """The role of a model: the kind of its inputs and outputs."""

    TENSORS = "tensors"  # token ids in, token ids out; it takes text too
    ENSEMBLE = "ensemble"  # text in, text out
    PREPROCESSING = "preprocessing"  # text in, the tensors of a request out
    POSTPROCESSING = "postprocessing"  # token ids in, text out

    @property
    def generates(self) -> bool:
        return self in (Role.TENSORS, Role.ENSEMBLE)
