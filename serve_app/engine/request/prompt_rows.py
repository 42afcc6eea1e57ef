"""The embeddings that a request brings for the virtual tokens of its prompt. Does not depend on a model."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import torch

from serve_app.engine.request.tensors import to_torch
from serve_app.types import PromptTable


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Those rows of one request's prompt table that its prompt uses."""

    rows: torch.Tensor  # [used, N]
    digest: str  # of the rows: two prompts share a KV cache only if their digests are equal

    @classmethod
    def of(cls, table: PromptTable) -> PromptRows:
        """Those rows of a checked table that the prompt uses."""
        rows = to_torch(table.rows)[: table.used]
        data = rows.contiguous().view(torch.uint8).numpy().tobytes()
        head = f"{table.rows.dtype} {tuple(rows.shape)} ".encode()
        return cls(rows, blake2b(head + data, digest_size=32).hexdigest())
