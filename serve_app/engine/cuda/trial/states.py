"""The trial of functions with a state: the kernels beside plain torch on random tokens of a few sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from serve_app.engine.cuda.states.launch import TOKENS, TritonStates
from serve_app.engine.state import StateKernels, StateRecorder, States
from serve_app.engine.state.convolution import causal_conv1d
from serve_app.engine.state.gated_delta import gated_delta_rule
from serve_app.engine.state.mamba import mamba2_scan, mamba_scan
from serve_app.engine.state.pools import StepStates
from serve_app.engine.state.waves import Span, Wave

LENGTHS: Final = (1, TOKENS + 4, 2, 1)  # of the sequences; rows after them belong to none
SLOTS: Final = 2 * len(LENGTHS)  # sequence s reads slot s and writes slot s + len(LENGTHS)
HEADS, GROUPS, WIDTH, NUMBERS = 2, 1, 128, 16
Call = Callable[[States], torch.Tensor]  # one function with a state over random inputs
# Relative to the largest output. States are float32; a convolution is rounded to its type.
ERROR: Final = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def states_fault(dtype: torch.dtype, device: torch.device, kernels: StateKernels | None = None) -> str | None:
    """The fault of `kernels` (None: those of Triton), in a sentence; None if there is none."""
    for name, call in calls(dtype, device):
        want, kept = run(call, None, device)
        got, written = run(call, kernels or TritonStates(), device)
        for what, one, other in (("outputs", want, got), ("states", kept, written)):
            difference, largest = (float(each.float().abs().max()) for each in (one - other, one))
            if not difference <= ERROR[dtype] * largest:  # NaN is a fault too
                return f"the {what} of {name} differ by {difference:.3g} of {largest:.3g}"
    return None


def run(
    call: Call, kernels: StateKernels | None, device: torch.device, lengths: tuple[int, ...] = LENGTHS
) -> tuple[torch.Tensor, torch.Tensor]:
    """The outputs of `call` over sequences of `lengths` after random states, and all states after it."""
    recorder = StateRecorder()
    call(recorder)
    (spec,) = recorder.specs
    pool = torch.randn(SLOTS, *spec.shape, generator=torch.Generator().manual_seed(1))
    pool = pool.to(device, spec.dtype)
    rows = 0
    spans = []
    for number, length in enumerate(lengths):
        spans.append(Span(rows, length, number, number + len(LENGTHS)))
        rows += length
    waves = [Wave(spans, device)] if spans else []
    return call(StepStates([pool], waves, kernels)), pool


def calls(dtype: torch.dtype, device: torch.device) -> Iterator[tuple[str, Call]]:
    """Every function with a state, with its name."""
    tokens, random = sum(LENGTHS) + 2, torch.Generator().manual_seed(0)

    def numbers(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=random).to(device, dtype)

    def call(function: Callable[..., Any], *args: torch.Tensor, **options: Any) -> Call:
        def of(states: States) -> torch.Tensor:
            out = function(states, *args, **options)
            found: torch.Tensor = out[0] if isinstance(out, tuple) else out
            return found

        return of

    channels = WIDTH + 8
    convolved = numbers(1, channels, tokens), numbers(channels, 4)
    yield "causal_conv1d", call(causal_conv1d, *convolved, numbers(channels), activation="silu")
    yield "causal_conv1d without activation", call(causal_conv1d, *convolved)
    both = numbers(1, tokens, GROUPS, WIDTH), numbers(1, tokens, GROUPS, WIDTH)
    value, part = numbers(1, tokens, HEADS, WIDTH), numbers(1, tokens, HEADS).sigmoid()
    for name, decay in (
        ("gated_delta_rule", numbers(1, tokens, HEADS)),
        ("gated_delta_rule by channels", numbers(1, tokens, HEADS, WIDTH)),
    ):
        yield name, call(gated_delta_rule, *both, value, -decay.abs(), part, use_qk_l2norm_in_kernel=True)
    rates, factors = -numbers(HEADS).abs(), numbers(HEADS)
    steps = numbers(1, tokens, HEADS)
    yield "mamba2_scan", call(mamba2_scan, value, steps, rates, *both, D=factors, dt_softplus=True)
    rates, factors = -numbers(channels, NUMBERS).abs(), numbers(channels)
    both = numbers(1, NUMBERS, tokens), numbers(1, NUMBERS, tokens)
    steps = numbers(1, channels, tokens)
    given = convolved[0], steps, rates, *both
    yield "mamba_scan", call(mamba_scan, *given, D=factors, delta_softplus=True)
