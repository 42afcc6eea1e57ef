"""Hidden states -> one vector for each sequence, with the kinds of pooling that sentence-transformers has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import normalize

Vectors = npt.NDArray[np.float32]


def _weighted_mean(states: torch.Tensor) -> torch.Tensor:
    weights = torch.arange(1, len(states) + 1, device=states.device, dtype=states.dtype)[:, None]
    return (states * weights).sum(0) / weights.sum()


# [L, D] float32, L >= 1 -> [D]
POOLINGS: Final[Mapping[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "cls": lambda states: states[0],
    "mean": lambda states: states.mean(0),
    "max": lambda states: states.amax(0),
    "mean_sqrt_len": lambda states: states.sum(0) / len(states) ** 0.5,
    "weighted_mean": _weighted_mean,
    "last": lambda states: states[-1],
}


class Pooler:
    """One or more poolings, concatenated, then normalised to unit length if the model requires it."""

    def __init__(self, poolings: Sequence[str], *, normalized: bool) -> None:
        """Raises KeyError for a name that is not in POOLINGS."""
        self._poolings = [POOLINGS[name] for name in poolings]
        self._normalized = normalized

    @torch.inference_mode()
    def pool(self, states: Sequence[torch.Tensor]) -> Vectors:
        """The vectors [S, D] of S sequences' states [L, D], pooled in float32."""
        rows = [torch.cat([pooling(each.float()) for pooling in self._poolings]) for each in states]
        vectors = torch.stack(rows)
        if self._normalized:
            vectors = normalize(vectors, dim=-1)
        found: Any = vectors.cpu().numpy()
        return np.ascontiguousarray(found, dtype=np.float32)


def shortened(vectors: Vectors, dimensions: int) -> Vectors:
    """The first `dimensions` numbers of each vector [S, D], normalised again.

    This is useful if the model was trained for shortened vectors (Matryoshka representations).
    """
    head = vectors[:, :dimensions]
    norms = np.linalg.norm(head, axis=1, keepdims=True)
    return np.ascontiguousarray(head / np.maximum(norms, np.finfo(np.float32).tiny), dtype=np.float32)
