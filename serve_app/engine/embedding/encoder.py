"""Sequences of ids -> hidden states, by a transformers module, without padding.

The fast way packs sequences into one row and uses our own attention; a test at load shows whether its results
are those of the module itself. If they are not (say, because the module adds biases to its attention),
sequences of equal length are batched and run through the module itself. Either way, a sequence does not see
the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import groupby
from typing import Any, Final, Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from serve_app.engine.attention.reference import attend
from serve_app.engine.model.forward import HARMLESS, UnsupportedModel

ATTENTION_NAME: Final = "serve_app_packed"

_lengths: ContextVar[tuple[int, ...]] = ContextVar("packed_lengths")


@contextmanager
def packed(lengths: Sequence[int]) -> Iterator[None]:
    """Inside the context, forwards get sequences of these lengths, packed one after another.

    Neighbouring sequences of equal length are computed together.
    """
    token = _lengths.set(tuple(lengths))
    try:
        yield
    finally:
        _lengths.reset(token)


# Registered with transformers under a name, as the paged one is. No mask function is registered under the
# name, so transformers builds none, and direction and window come with the call.
def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, H, T, D]
    key: torch.Tensor,  # [1, Hkv, T, D]
    value: torch.Tensor,  # [1, Hkv, T, Dv]
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attend within each sequence; returns ([1, T, H, Dv], None) as transformers expects.

    `sliding_window`: a query sees fewer than this many tokens on either side, counting itself; if causal, it
    sees only the left side. Raises UnsupportedModel for any other option.
    """
    name = type(module).__name__
    if attention_mask is not None:
        raise UnsupportedModel(f"{name} builds its own attention mask")
    unknown = [k for k in others.keys() - HARMLESS if not isinstance(others[k], bool | None)]
    if unknown:
        raise UnsupportedModel(f"{name} needs {', '.join(sorted(unknown))}, which is not supported")
    causal = bool(getattr(module, "is_causal", True)) if is_causal is None else is_causal
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    outputs, start = [], 0
    for length, group in groupby(_lengths.get()):
        count = sum(1 for _ in group)
        rows = slice(start, start + count * length)
        start = rows.stop
        # [1, H, N L, D] -> [N, H, L, D]
        q, k, v = (
            part[0, :, rows].reshape(part.shape[1], count, length, -1).transpose(0, 1)
            for part in (query, key, value)
        )
        mask = None if sliding_window is None else _window_mask(length, sliding_window, causal, q.device)
        if softcap or s_aux is not None:
            out = _attend_plainly(q, k, v, mask, causal, scale, softcap or None, s_aux)
        else:
            out = scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask,
                is_causal=causal and mask is None,
                scale=scale,
                enable_gqa=q.shape[1] != k.shape[1],
            ).transpose(1, 2)
        outputs.append(out.flatten(0, 1))
    return torch.cat(outputs).unsqueeze(0), None


def _window_mask(length: int, window: int, causal: bool, device: torch.device) -> torch.Tensor:
    """[L, L] bool, True where a query may see a key."""
    positions = torch.arange(length, device=device)
    back = positions[:, None] - positions
    return (back < window) & (back >= 0 if causal else back > -window)


def _attend_plainly(
    query: torch.Tensor,  # [N, H, L, D]
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attention with the options that the fused function lacks; returns [N, L, H, Dv]."""
    count, _, length, _ = query.shape
    if mask is None:
        mask = _window_mask(length, length, causal, query.device)
    q, k, v = (part.transpose(1, 2) for part in (query, key, value))
    visible = mask.expand(count, length, length)
    return attend(q, k, v, visible, scale=scale, softcap=softcap, sinks=sinks)


AttentionInterface.register(ATTENTION_NAME, packed_attention)


Ids = Sequence[int]

_PROBE_LENGTHS: Final = (5, 3, 9)
# Of hidden states, relative to their largest: rounding of half precision lies far below a wrong mask.
_TOLERANCE: Final = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


class Encoder(Protocol):
    """Hidden states of several sequences at once."""

    def hidden(self, sequences: Sequence[Ids]) -> list[torch.Tensor]:
        """The last layer's states [L, D] of each sequence, in the order of the sequences."""
        ...


class PackedEncoder:
    """Packs all sequences into one row, with the positions of each counted from `first_position`."""

    def __init__(self, module: PreTrainedModel, first_position: int) -> None:
        self._module = module
        self._first = first_position
        module.set_attn_implementation(ATTENTION_NAME)

    @torch.inference_mode()
    def hidden(self, sequences: Sequence[Ids]) -> list[torch.Tensor]:
        """As `Encoder.hidden`. Raises UnsupportedModel if the module cannot use our attention."""
        device = self._module.device
        order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))  # equal lengths run as one
        lengths = [len(sequences[i]) for i in order]
        ids = [token for i in order for token in sequences[i]]
        positions = [self._first + p for length in lengths for p in range(length)]
        with packed(lengths):
            states = self._module(
                input_ids=torch.tensor([ids], device=device),
                position_ids=torch.tensor([positions], device=device),
                use_cache=False,
            ).last_hidden_state[0]
        found = dict(zip(order, torch.split(states, lengths), strict=True))
        return [found[i] for i in range(len(sequences))]


class EqualLengthEncoder:
    """Runs the module as it is, on sequences of one length at a time, so that no mask is needed."""

    def __init__(self, module: PreTrainedModel) -> None:
        self._module = module

    @torch.inference_mode()
    def hidden(self, sequences: Sequence[Ids]) -> list[torch.Tensor]:
        """As `Encoder.hidden`."""
        order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
        found: dict[int, torch.Tensor] = {}
        for _, group in groupby(order, key=lambda i: len(sequences[i])):
            alike = list(group)
            ids = torch.tensor([sequences[i] for i in alike], device=self._module.device)
            # transformers adds `use_cache` where the module has one; an encoder need not know the word
            found |= zip(alike, self._module(input_ids=ids).last_hidden_state, strict=True)
        return [found[i] for i in range(len(sequences))]


def make_encoder(
    module: PreTrainedModel, *, first_position: int, window: int, progress: Callable[[str], None]
) -> Encoder:
    """The fastest encoder that gives the results of `module`. Raises UnsupportedModel if there is none.

    `first_position`: the number of a sequence's first position; `window`: the most tokens of a sequence.
    """
    # cuDNN makes a plan of tens of milliseconds for every new shape, and keeps it. Inputs have any length.
    torch.backends.cuda.enable_cudnn_sdp(False)
    plain = EqualLengthEncoder(module)
    own = str(module.config._attn_implementation)
    lengths = [min(length, window) for length in _PROBE_LENGTHS]
    # Some modules derive positions from padding: the padding token is left out of the trial.
    padding = module.config.get_text_config().pad_token_id
    usable = [i for i in range(module.get_input_embeddings().weight.shape[0]) if i != padding]
    probe = [[usable[(7 * i + 3 * j) % len(usable)] for j in range(n)] for i, n in enumerate(lengths)]
    try:
        wanted = [plain.hidden([ids])[0] for ids in probe]
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise UnsupportedModel(f"it does not encode token ids alone ({error})") from error
    try:
        fast = PackedEncoder(module, first_position)
        if _agree(fast.hidden(probe), wanted):
            return fast
        reason = "packed it gives other vectors"
    except (UnsupportedModel, TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
        reason = str(error)
    progress(f"inputs of one length at a time only: {reason}")
    module.set_attn_implementation(own)
    if not _agree(plain.hidden(probe), wanted):
        raise UnsupportedModel("it gives other vectors when inputs are computed together")
    return plain


def _agree(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> bool:
    return all(
        bool(((a - b).abs().max() <= _TOLERANCE.get(b.dtype, 1e-4) * b.abs().max()).item())
        for a, b in zip(found, wanted, strict=True)
    )
