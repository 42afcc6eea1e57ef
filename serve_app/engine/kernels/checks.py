"""The checks that native calls make on their tensors. Each function raises ValueError."""

from __future__ import annotations

import torch

from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.kernels.layers import NativeCache


def check(tensor: torch.Tensor, *dtypes: torch.dtype) -> None:
    """Check that the tensor has one of the types, is contiguous and is on a CPU."""
    if tensor.dtype not in dtypes or not tensor.is_contiguous() or not tensor.is_cpu:
        raise ValueError(f"expected a contiguous CPU tensor of {dtypes}, got {tensor.dtype}")


def wanted(context: ForwardContext) -> torch.Tensor:
    """The first wanted row of each sequence, according to `context`."""
    if context.wanted_start is None or len(context.wanted_lens) != context.num_sequences:
        raise ValueError("the context does not say which rows are wanted")
    if any(some > rows for some, rows in zip(context.wanted_lens, context.query_lens, strict=True)):
        raise ValueError("more rows are wanted than there are")
    check(context.wanted_start, torch.int32)
    return context.wanted_start


def check_context(context: ForwardContext, tokens: int, cache: NativeCache) -> None:
    """Raise ValueError unless the context matches: `tokens` rows, and the block size of the cache."""
    if sum(context.query_lens) != tokens or context.block_size != cache.struct.block_size:
        raise ValueError("the context does not fit the query or the cache")
    for tensor in (context.query_start, context.context_lens, context.block_tables):
        check(tensor, torch.int32)
