"""A recurrence over the tokens of a batch, one token of each sequence at a time, in plain torch.

Prompts and decodes share this arithmetic, so a state does not depend on how its prompt was cut into pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from serve_app.engine.state.waves import Wave

# (state [n, ...], changed in place; the inputs [n, ...] of one token of n sequences) -> outputs [n, ...]
Advance = Callable[..., torch.Tensor]


def scan(
    waves: Sequence[Wave], pool: torch.Tensor, out: torch.Tensor, advance: Advance, *inputs: torch.Tensor
) -> torch.Tensor:
    """Fill `out` [T, ...], and the slots of `pool` [slots, ...], from `inputs` [T, ...]; returns `out`."""
    for wave in waves:
        states = pool.index_select(0, wave.sources)
        for rows in wave.tokens():
            token = (each.index_select(0, rows) for each in inputs)
            out.index_copy_(0, rows, advance(states[: len(rows)], *token))
        pool.index_copy_(0, wave.targets, states)
    return out
