"""The low-rank adapter (LoRA) of a request, and the weights that the request may bring along."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from serve_app.types.result import Tensor

TASK_PREFIX: Final = "task:"  # before a client's own id; no folder adapter's name holds a colon


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """An adapter by name, with its weights if the client sends them.

    `name` is a folder adapter's name, or `task:` and the client's task id in decimals. A
    task belongs to the tenant that sent its weights: it is kept under the request's salt. Both tensors are as
    the client sent them; the replica checks them before they touch the model.
    """

    name: str
    config: Tensor | None = None  # INT32 (rows, 3): module id, layer, rank
    weights: Tensor | None = None  # FP16, BF16 or FP32 (rows, width)

    @property
    def is_task(self) -> bool:
        """Whether the weights are a client's own, not those of an operator's folder."""
        return self.name.startswith(TASK_PREFIX)
