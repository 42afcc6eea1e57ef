"""Functions with a state over a packed batch, beside transformers' own over each sequence alone."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch

from serve_app.engine.kernels import SWITCH
from serve_app.engine.sequence import Chunk, Sequence
from serve_app.engine.state import StateRecorder
from serve_app.engine.state.functions import FUNCTIONS
from serve_app.engine.state.pools import StatePools
from serve_app.types import SamplingParams

HEADS, GROUPS, KEYS, VALUES, CHANNELS = 4, 2, 16, 24, 40
Inputs = Callable[[int, torch.Generator], tuple[tuple[Any, ...], dict[str, Any]]]


def convolution(length: int, random: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    fixed = torch.Generator().manual_seed(9)
    weight, bias = torch.randn(CHANNELS, 4, generator=fixed), torch.randn(CHANNELS, generator=fixed)
    return (torch.randn(1, CHANNELS, length, generator=random), weight, bias), {"activation": "silu"}


def delta(length: int, random: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    q, k = (torch.randn(1, length, GROUPS, KEYS, generator=random) for _ in range(2))
    v = torch.randn(1, length, HEADS, VALUES, generator=random)
    g = -torch.rand(1, length, HEADS, generator=random)
    beta = torch.rand(1, length, HEADS, generator=random)
    return (q, k, v), {"g": g, "beta": beta, "use_qk_l2norm_in_kernel": True, "output_final_state": False}


def delta_of_channels(length: int, random: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    (_, _, v), options = delta(length, random)
    q, k = (torch.randn(1, length, HEADS, KEYS, generator=random) for _ in range(2))
    g = -torch.rand(1, length, HEADS, KEYS, generator=random)
    return (q, k, v), {**options, "g": g, "initial_state": None}


def mamba2(length: int, random: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    x = torch.randn(1, length, HEADS, VALUES, generator=random)
    dt = torch.randn(1, length, HEADS, generator=random)
    b, c = (torch.randn(1, length, GROUPS, KEYS, generator=random) for _ in range(2))
    fixed = torch.linspace(0.2, 1.4, HEADS)
    options = {"D": fixed, "dt_bias": fixed, "dt_softplus": True, "dt_limit": (0.3, 2.0)}
    return (x, dt, -fixed, b, c), {"chunk_size": 8, **options}


def mamba(length: int, random: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    x, dt, z = (torch.randn(1, CHANNELS, length, generator=random) for _ in range(3))
    b, c = (torch.randn(1, KEYS, length, generator=random) for _ in range(2))
    rates = -torch.linspace(0.1, 2, CHANNELS * KEYS).view(CHANNELS, KEYS)
    bias = torch.linspace(-1, 1, CHANNELS)
    return (x, dt, rates, b, c), {"D": bias, "z": z, "delta_bias": bias, "delta_softplus": True}


# The file of transformers that has a function, how inputs are made, and the dimension of tokens in results.
CASES: dict[str, tuple[str, Inputs, int]] = {
    "causal_conv1d_fn": ("lfm2", convolution, 2),
    "chunk_kimi_delta_attention": ("kimi_linear", delta_of_channels, 1),
    "mamba2_chunk_scan": ("bamba", mamba2, 1),
    "mamba_selective_scan": ("jamba", mamba, 2),
    "torch_chunk_gated_delta_rule": ("qwen3_next", delta, 1),
}
LENGTHS = (9, 1, 20)  # of the sequences


def whole(name: str, args: tuple[Any, ...], options: dict[str, Any]) -> torch.Tensor:
    """Of transformers' own function."""
    kind = CASES[name][0]
    function = getattr(importlib.import_module(f"transformers.models.{kind}.modeling_{kind}"), name)
    function = getattr(function, "__wrapped__", function)  # of one that is connected
    out = function(*args, **options)
    return out[0] if isinstance(out, tuple) else out


def varies(each: Any, length: int) -> int | None:
    """The dimension of the tokens of an input."""
    if not isinstance(each, torch.Tensor) or each.dim() < 3:
        return None
    return next(dim for dim in (1, 2) if each.shape[dim] == length)


def parts(each: Any, dim: int | None, first: int, end: int) -> Any:
    return each if dim is None else each.narrow(dim, first, end - first)


@pytest.mark.parametrize("kernels", ["on", "off"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_packed_batch_in_pieces_gives_what_each_sequence_gives_alone(
    name: str, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, kernels)
    _, make, tokens = CASES[name]
    random = torch.Generator().manual_seed(1)
    made = [make(length, random) for length in LENGTHS]
    want = [whole(name, *inputs) for inputs in made]
    recorder = StateRecorder()
    FUNCTIONS[name](recorder, *made[0][0], **made[0][1])
    pools = StatePools(recorder.specs, 12, torch.device("cpu"))
    bounds = ((0, 4, 5, 9), (0, 1), (0, 7, 20, 20))
    got: list[list[torch.Tensor]] = [[] for _ in LENGTHS]
    held: list[int | None] = [None] * len(LENGTHS)
    for step in range(3):
        chunks, pieces = [], []
        for i, places in enumerate(bounds):
            if step + 1 >= len(places) or places[step] == places[step + 1]:
                continue
            first, end = places[step : step + 2]
            sequence = Sequence("", 0, end, [0] * end, SamplingParams(), 0)
            slot = 4 * i + step
            inside = ((first + 2, 4 * i + 3),) if end - first > 3 else ()  # a state that is kept for others
            chunk = Chunk(sequence, first, end - first, end, source=held[i], stops=(*inside, (end, slot)))
            chunks.append(chunk)
            pieces.append((i, first, end))
            held[i] = slot
        packed_args, packed_options = [], {}
        for n in range(len(made[0][0])):
            packed_args.append(joined([(made[i][0][n], LENGTHS[i], a, b) for i, a, b in pieces]))
        for key in made[0][1]:
            packed_options[key] = joined([(made[i][1][key], LENGTHS[i], a, b) for i, a, b in pieces])
        out = FUNCTIONS[name](pools.of_step(chunks), *packed_args, **packed_options)
        out = out[0] if isinstance(out, tuple) else out
        lengths = [b - a for _, a, b in pieces]
        for (i, _, _), rows in zip(pieces, out.split(lengths, dim=tokens), strict=True):
            got[i].append(rows)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(torch.cat(one, dim=tokens), other, rtol=1e-4, atol=1e-4)


def joined(inputs: list[tuple[Any, int, int, int]]) -> Any:
    """Parts of the same input of several sequences, packed; `inputs`: each with its length, first and end."""
    each, length, _, _ = inputs[0]
    dim = varies(each, length)
    if dim is None:
        return each
    return torch.cat([parts(x, dim, first, end) for x, _, first, end in inputs], dim=dim)


def test_a_step_that_runs_twice_gives_the_same_states() -> None:
    args, options = delta(6, torch.Generator().manual_seed(2))
    recorder = StateRecorder()
    FUNCTIONS["torch_chunk_gated_delta_rule"](recorder, *args, **options)
    pools = StatePools(recorder.specs, 3, torch.device("cpu"))
    sequence = Sequence("", 0, 6, [0] * 6, SamplingParams(), 0)
    chunk = Chunk(sequence, 0, 6, 5, stops=((6, 1),))
    one, two = (
        FUNCTIONS["torch_chunk_gated_delta_rule"](pools.of_step([chunk]), *args, **options)[0]
        for _ in range(2)
    )
    assert torch.equal(one, two)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_number_does_not_depend_on_its_place(threads: int) -> None:
    from serve_app.engine.exact import softplus

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x = torch.randn(70_001, generator=torch.Generator().manual_seed(3))
        whole_tensor = softplus(x)
        for first, end in pairwise((0, 1, 4, 37, 40_000, 70_001)):
            assert torch.equal(softplus(x[first:end]), whole_tensor[first:end])
    finally:
        torch.set_num_threads(before)
