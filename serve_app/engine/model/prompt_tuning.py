"""Prompt tuning: the embeddings of a prompt's virtual tokens come from the request.

The model's own embedding stays in place: for a virtual token it looks up some real token, and the virtual
token's row is then written over the result. So every path of the model, fused or not, gets these rows like
any other embeddings. Does not depend on the cache or on sampling.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from serve_app.engine.sequence import Chunk
from serve_app.engine.transfer import send

STAND_IN: Final = 0  # the real token that is looked up in place of a virtual one


@dataclass(frozen=True, slots=True)
class StepRows:
    """The virtual tokens of one step: their places among its T rows, and their embeddings."""

    places: torch.Tensor  # [P] int64
    values: torch.Tensor  # [P, N]


class EmbeddingRows:
    """Writes the rows of prompt tables over the output of a model's embedding."""

    def __init__(self, module: PreTrainedModel, vocab_size: int) -> None:
        """Ids from `vocab_size` on are virtual. `width` is the size of a row; 0: the model does not support
        virtual tokens."""
        self._vocab_size = vocab_size
        self._step: StepRows | None = None
        embedding: Any = module.get_input_embeddings()
        self.width = int(embedding.embedding_dim) if _only_embedding(module, embedding) else 0
        if self.width:
            embedding.register_forward_hook(self._write)

    def of_step(self, chunks: Sequence[Chunk], device: torch.device) -> StepRows | None:
        """The virtual tokens of packed chunks; None when there are none."""
        places: list[int] = []
        values: list[torch.Tensor] = []
        row = 0
        for chunk in chunks:
            table = chunk.sequence.prompt_rows
            if table is not None and chunk.start < chunk.sequence.prompt_len:
                ids = chunk.sequence.token_ids[chunk.start : chunk.own_end]
                virtual = [i for i, token in enumerate(ids) if token >= self._vocab_size]
                places += [row + i for i in virtual]
                values.append(table.rows[[ids[i] - self._vocab_size for i in virtual]])
            row += chunk.length
        if not places:
            return None
        rows = torch.cat([value.to(torch.float32) for value in values]).numpy()
        return StepRows(*send(device, np.array(places, dtype=np.int64), rows))

    @contextmanager
    def written(self, step: StepRows | None) -> Iterator[None]:
        """Inside the context, forwards get these rows."""
        self._step = step
        try:
            yield
        finally:
            self._step = None

    def _write(self, module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        """`output` is [1, T, N]."""
        if self._step is not None:
            output[0, self._step.places] = self._step.values.to(output.dtype)


def _only_embedding(module: PreTrainedModel, embedding: Any) -> bool:
    """Whether `embedding` is the only table in which the model looks tokens up. Some models have a table for
    each layer."""
    if not isinstance(embedding, nn.Embedding):
        return False
    config = module.config.get_text_config()
    if getattr(config, "hidden_size_per_layer_input", None) or getattr(
        config, "vocab_size_per_layer_input", None
    ):
        return False
    sizes = [m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding) and m is not embedding]
    return embedding.num_embeddings not in sizes
