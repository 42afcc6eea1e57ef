"""What rank 0 sends to the other ranks, and their replies: plain values, a message for each step.

A step's inputs travel as the arrays that its batch was made of. Chunks are described only as far as a runner
reads them, and only if one of them has an adapter, states or virtual tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec
import numpy as np
import torch

from serve_app.engine.batch import Batch, HostArrays
from serve_app.engine.model.lora import LowRank
from serve_app.engine.request.prompt_rows import PromptRows
from serve_app.engine.sequence import Chunk
from serve_app.engine.sequence import Sequence as TokenSequence
from serve_app.types import SamplingParams

_TYPES: Final = (np.int64,) * 4 + (np.int32,) * 4  # of `HostArrays`
_DTYPES: Final = {str(each): each for each in (torch.float32, torch.bfloat16, torch.float16)}


class Matrix(msgspec.Struct, array_like=True):
    """A tensor on the host."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Matrix:
        there = tensor.detach().cpu().contiguous()
        return cls(str(there.dtype), tuple(there.shape), there.view(-1).view(torch.uint8).numpy().tobytes())

    def tensor(self) -> torch.Tensor:
        dtype = _DTYPES[self.dtype]
        if not self.data:
            return torch.empty(self.shape, dtype=dtype)
        return torch.frombuffer(bytearray(self.data), dtype=dtype).view(self.shape)


class ChunkPart(msgspec.Struct, array_like=True):
    """What a runner reads of a chunk."""

    start: int
    length: int
    adapter: str | None
    source: int | None
    stops: tuple[tuple[int, int], ...]
    prompt_len: int = 0
    ids: list[int] = []  # those of the chunk, if some of them are virtual
    rows: Matrix | None = None  # the embeddings of the prompt's virtual tokens

    @classmethod
    def of(cls, chunk: Chunk) -> ChunkPart:
        sequence = chunk.sequence
        part = cls(chunk.start, chunk.length, sequence.adapter, chunk.source, chunk.stops)
        if sequence.prompt_rows is not None and chunk.start < sequence.prompt_len:
            part.prompt_len = sequence.prompt_len
            part.ids = sequence.token_ids[chunk.start : chunk.own_end]
            part.rows = Matrix.of(sequence.prompt_rows.rows)
        return part

    def chunk(self) -> Chunk:
        """A chunk that a runner cannot tell from the original."""
        ids = [0] * self.start + self.ids if self.ids else []
        rows = None if self.rows is None else PromptRows(self.rows.tensor(), "")
        sequence = TokenSequence(
            *("", 0, self.prompt_len, ids, SamplingParams(), 0), adapter=self.adapter, prompt_rows=rows
        )
        return Chunk(
            sequence, self.start, self.length, self.start + self.length, (), None, self.source, self.stops
        )


class Step(msgspec.Struct, array_like=True, tag="step"):
    """Run a batch."""

    arrays: tuple[bytes, ...]
    block_size: int
    is_fed: bool  # rank 0 sends the ids on the device
    chunks: list[ChunkPart]

    @classmethod
    def of(cls, batch: Batch, has_states: bool) -> Step:
        described = has_states or any(
            chunk.sequence.adapter is not None or chunk.sequence.prompt_rows is not None
            for chunk in batch.chunks
        )
        return cls(
            tuple(each.tobytes() for each in batch.arrays),
            batch.context.block_size,
            batch.is_fed,
            [ChunkPart.of(chunk) for chunk in batch.chunks] if described else [],
        )

    def batch(self, device: torch.device) -> Batch:
        arrays = (np.frombuffer(bytearray(data), of) for data, of in zip(self.arrays, _TYPES, strict=True))
        return HostArrays(*arrays).batch([each.chunk() for each in self.chunks], self.block_size, device)


class CopyBlocks(msgspec.Struct, array_like=True, tag="copy"):
    """Copy blocks of the cache (source, target)."""

    pairs: list[tuple[int, int]]


class Update(msgspec.Struct, array_like=True):
    """As `LowRank`, of the whole model."""

    layer: int
    module: str
    a: Matrix
    b: Matrix

    @classmethod
    def of(cls, update: LowRank) -> Update:
        return cls(update.layer, update.module, Matrix.of(update.a), Matrix.of(update.b))

    def low_rank(self) -> LowRank:
        return LowRank(self.layer, self.module, self.a.tensor(), self.b.tensor())


class PutAdapter(msgspec.Struct, array_like=True, tag="put"):
    """Load an adapter."""

    key: str
    updates: Sequence[Update]


class DropAdapter(msgspec.Struct, array_like=True, tag="drop"):
    """Forget an adapter."""

    key: str


class Start(msgspec.Struct, array_like=True, tag="start"):
    """The first message to a follower, before which it knows nothing."""

    config: bytes  # JSON of a ModelConfig
    rank: int
    hosts: list[str]  # the address of each rank's machine


class Stop(msgspec.Struct, array_like=True, tag="stop"):
    """End."""


Command: TypeAlias = Start | Step | CopyBlocks | PutAdapter | DropAdapter | Stop


class Reply(msgspec.Struct, array_like=True):
    """A follower has reached a point of its start, or cannot."""

    point: str  # loaded, or ready
    # Of linears that adapters can change: layer, name, outputs and inputs in the whole model.
    linears: tuple[tuple[int, str, int, int], ...] = ()
    refused: str | None = None  # why this model cannot be loaded, for the operator
