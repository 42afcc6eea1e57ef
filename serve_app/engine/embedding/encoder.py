"""Sequences of ids -> hidden states, by a transformers module, without padding.

The fast way packs sequences into one row with our own attention between; whether that
gives the module's own results is tried once, at load. If not (a module that adds biases to its
attention, say), sequences of one length run at a time, through the module itself. Either way a
sequence sees nothing of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Final, Protocol

import torch
from transformers import PreTrainedModel

from serve_app.engine.embedding.packed import ATTENTION_NAME, packed
from serve_app.engine.model.forward import UnsupportedModel

Ids = Sequence[int]

_PROBE_LENGTHS: Final = (5, 3, 9)
# Of hidden states, relative to their largest: rounding of half precision lies far below a wrong mask.
_TOLERANCE: Final = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


class Encoder(Protocol):
    """Hidden states of several sequences at once."""

    def hidden(self, sequences: Sequence[Ids]) -> list[torch.Tensor]:
        """The last layer's states of each sequence, [L, D], in their order."""
        ...


class PackedEncoder:
    """All sequences in one row, positions counted from `first_position` in each."""

    def __init__(self, module: PreTrainedModel, first_position: int) -> None:
        self._module = module
        self._first = first_position
        module.set_attn_implementation(ATTENTION_NAME)

    @torch.inference_mode()
    def hidden(self, sequences: Sequence[Ids]) -> list[torch.Tensor]:
        """As `Encoder.hidden`. UnsupportedModel if its attention is none of ours."""
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
    """The module as it is, for sequences of one length at a time, so that it needs no mask."""

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
    """The fastest encoder with the results of `module`. Raises UnsupportedModel if there is none.

    `first_position`: the number of a sequence's first position; `window`: tokens it may have.
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
