"""The bridge from a transformers module to our attention: one registered function.

Transformers looks its attention up by name and hands it queries, keys and values with positions already
applied. It cannot pass on where our sequences are in the batch and in the cache, so a step makes its backend
and context *active* during one forward. Does not depend on cache layouts, and computes nothing.

No mask function is registered under our name, so transformers builds no mask at all; the backend alone
decides what a query may see.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Protocol

import torch
from transformers import AttentionInterface

from serve_app.engine.attention import AttentionBackend, LayerSpec
from serve_app.engine.attention.chunked import within_chunks
from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.model.latents import connect_latents, latents_of
from serve_app.engine.model.lora import RowAdapters
from serve_app.engine.model.query_temperature import temperature_of
from serve_app.engine.state import States

ATTENTION_NAME: Final = "serve_app_paged"
POSITIONS: Final = ("position_embeddings", "embed_positions")  # the ends of names of what embeds positions


class Line(Protocol):
    """What is before and behind the layers of this process, if a model's layers are divided among stages."""

    @property
    def is_last(self) -> bool:
        """Whether the head is here."""
        ...

    def enter(self, states: torch.Tensor) -> torch.Tensor:
        """The hidden states of the stage before, like `states`, which the first stage gets back."""
        ...

    def leave(self, states: torch.Tensor) -> None:
        """Give hidden states to the next stage, if there is one; does not wait for it."""
        ...


SHARED: Final = -1  # the number of attention in a block that several layers share


class NoMask:
    """Stands for a mask in modules that take parts of theirs. Our attention needs none."""

    def __getitem__(self, key: object) -> NoMask:
        return self


class UnsupportedModel(Exception):
    """The module computes something that our attention would get wrong. Found at load, and never served."""


@dataclass(frozen=True)
class ActiveStep:
    """The step that the running forward is part of."""

    backend: AttentionBackend
    context: ForwardContext
    adapters: RowAdapters | None = None  # None: no row has one
    states: States | None = None  # None: functions with a state start from none, and keep none
    given_positions: torch.Tensor | None = None  # None: they are computed from `context`
    line: Line | None = None  # None: all layers are here, or those that are here run by themselves
    chunked: dict[int, ForwardContext] = field(default_factory=dict)  # by the length of a chunk

    @cached_property
    def positions(self) -> torch.Tensor:
        """The positions [T] of the rows in their sequences."""
        if self.given_positions is not None:
            return self.given_positions
        spans = zip(self.context.lens, self.context.query_lens, strict=True)
        found = torch.cat([torch.arange(end - count, end) for end, count in spans])
        return found.to(self.context.slots.device)

    def context_of(self, chunk: int | None) -> ForwardContext:
        """The context of a layer that attends within chunks of this many tokens; None: it has no chunks."""
        if chunk is None:
            return self.context
        if chunk not in self.chunked:
            self.chunked[chunk] = within_chunks(self.context, chunk)
        return self.chunked[chunk]


# Arguments that models pass along and that change nothing here, like every flag. Any other one (a
# position bias, the index set of sparse attention) would change the scores: refused, not ignored.
HARMLESS: Final = frozenset(
    {
        "cache_position",
        "cu_seq_lens_k",
        "cu_seq_lens_q",
        "dropout",
        "max_length_k",
        "max_length_q",
        "position_embeddings",
        "position_ids",
    }
)

_active: ContextVar[ActiveStep | None] = ContextVar("active_step", default=None)


def check_codes(layers: Iterable[LayerSpec], *, codes: bool) -> None:
    """Raise UnsupportedModel if a cache of codes would hold latents."""
    if codes and any(layer.latent for layer in layers):
        raise UnsupportedModel(
            "its cache holds latents beside rotary keys, and one scale of codes cannot serve both: "
            "set engine.kv_cache_dtype to auto"
        )


def check_chunks(config: Any, block_size: int) -> None:
    """Raise UnsupportedModel if a layer attends within chunks that do not start where blocks start."""
    length = getattr(config, "attention_chunk_size", None)
    if length and length % block_size and "chunked_attention" in (config.layer_types or ()):
        raise UnsupportedModel(
            f"it attends within chunks of {length} tokens, which are not made of blocks of {block_size}: "
            "set engine.block_size to 16"
        )


def connect_attention(module: Any) -> None:
    """Let the layers of a transformers model pass queries, keys and values, or latents, to `paged_attention`.

    Blocks whose weights several layers share get their layer's number, which transformers tells their forward
    alone.
    """
    module.set_attn_implementation(ATTENTION_NAME)
    connect_latents(module, ATTENTION_NAME)
    for number, layer in enumerate(getattr(module.get_decoder(), "layers", ())):
        for part in layer.modules():
            if getattr(part, "layer_idx", None) == SHARED:
                part.layer_idx = number


def takes_positions(module: torch.nn.Module) -> bool:
    return "position_ids" in inspect.signature(module.forward).parameters


def check_takes_positions(module: torch.nn.Module) -> None:
    """Raise UnsupportedModel unless the module's forward accepts the position, from 0, of every token."""
    kind = type(module).__name__
    if not takes_positions(module):
        raise UnsupportedModel(f"{kind} takes no positions, so it cannot be batched here")
    for name, part in module.named_modules():
        if name.endswith(POSITIONS) and getattr(part, "padding_idx", None) is not None:
            raise UnsupportedModel(f"{kind} numbers positions from the end of its padding, not from 0")


@contextmanager
def active(
    backend: AttentionBackend,
    context: ForwardContext,
    adapters: RowAdapters | None = None,
    states: States | None = None,
    positions: torch.Tensor | None = None,
    line: Line | None = None,
) -> Iterator[None]:
    """Send every attention call of forwards inside the context manager to `backend`, with `context`.

    `adapters` are added to the outputs of the linears that they change. `states` are used for one forward
    only. `positions` [T] are those of the rows in their sequences: they are needed if `context` only knows an
    upper bound of them. `line`: of a stage.
    """
    token = _active.set(ActiveStep(backend, context, adapters, states, positions, line))
    try:
        yield
    finally:
        _active.reset(token)


def current() -> ActiveStep:
    """The active step; RuntimeError outside `active`."""
    step = _active.get()
    if step is None:
        raise RuntimeError("a forward with paged attention needs an active step")
    return step


def applied_adapters() -> RowAdapters | None:
    """The adapters of the active step; None without such a step, or if none of its rows has an adapter."""
    step = _active.get()
    return None if step is None else step.adapters


def joined_line() -> Line | None:
    """The line of the active step; None without such a step, or if it has no line."""
    step = _active.get()
    return None if step is None else step.line


def applied_states() -> States | None:
    """The states of the active step; None without such a step, or if it has no states."""
    step = _active.get()
    return None if step is None else step.states


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, H, T, D]
    key: torch.Tensor,  # [1, Hkv, T, D]
    value: torch.Tensor,  # [1, Hkv, T, Dv]
    attention_mask: torch.Tensor | NoMask | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    is_causal: bool | None = None,
    indices: torch.Tensor | None = None,  # [1, T, K]: what each row sees, as `IndexedBackend` has it
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attend within the active step; returns ([1, T, H, Dv], None) as transformers expects.

    Raises UnsupportedModel for arguments that a causal paged cache cannot honour.
    """
    if attention_mask is not None and not isinstance(attention_mask, NoMask):
        raise UnsupportedModel(f"{type(module).__name__} builds its own attention mask")
    unknown = [k for k in others.keys() - HARMLESS if not isinstance(others[k], bool | None)]
    if unknown:
        raise UnsupportedModel(
            f"{type(module).__name__} needs {', '.join(sorted(unknown))}, which is not supported"
        )
    if is_causal is False or getattr(module, "is_causal", True) is False:
        raise UnsupportedModel(f"{type(module).__name__} is not causal")
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise UnsupportedModel(f"{type(module).__name__} does not tell which layer it is")
    step = current()
    temperature = temperature_of(module)
    if temperature is not None:
        query = temperature.apply(query, step.positions)
    scaling, dtype = query.shape[-1] ** -0.5 if scaling is None else scaling, query.dtype
    latents = latents_of(module)
    if latents is not None:
        query = latents.absorb(query)
    chosen = {} if indices is None else {"chosen": indices[0]}
    out = step.backend.forward(
        layer,
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        step.context_of(_chunk_of(module, layer)),
        scale=scaling,
        window=sliding_window or None,
        softcap=softcap or None,
        sinks=s_aux,
        latent=latents is not None,
        **chosen,
    )
    if latents is not None:
        out = latents.expand(out, dtype)
    return out.unsqueeze(0), None


def _chunk_of(module: torch.nn.Module, layer: int) -> int | None:
    """The length of the chunks within which the layer attends; None: it does not attend within chunks."""
    config: Any = getattr(module, "config", None)
    kinds = getattr(config, "layer_types", None)
    return int(config.attention_chunk_size) if kinds and kinds[layer] == "chunked_attention" else None


AttentionInterface.register(ATTENTION_NAME, paged_attention)
