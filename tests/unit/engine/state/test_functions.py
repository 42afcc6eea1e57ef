"""Functions with a state over a packed batch, beside transformers' own over each sequence alone."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import MiniMaxConfig
from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention

from serve_app.engine.exact import softplus
from serve_app.engine.kernels import SWITCH
from serve_app.engine.sequence import Chunk
from serve_app.engine.sequence import Sequence as Tokens
from serve_app.engine.state import StateRecorder
from serve_app.engine.state.functions import FUNCTIONS
from serve_app.engine.state.pools import StatePools
from serve_app.types import SamplingParams
from tests.support.threads import of_threads

HEADS, GROUPS, KEYS, VALUES, CHANNELS = 4, 2, 16, 24, 40
Inputs = Callable[[int, torch.Generator], tuple[tuple[Any, ...], dict[str, Any]]]


def convolution(length: int, generator: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    fixed = torch.Generator().manual_seed(9)
    weight, bias = torch.randn(CHANNELS, 4, generator=fixed), torch.randn(CHANNELS, generator=fixed)
    return (torch.randn(1, CHANNELS, length, generator=generator), weight, bias), {"activation": "silu"}


def delta(length: int, generator: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    q, k = (torch.randn(1, length, GROUPS, KEYS, generator=generator) for _ in range(2))
    v = torch.randn(1, length, HEADS, VALUES, generator=generator)
    g = -torch.rand(1, length, HEADS, generator=generator)
    beta = torch.rand(1, length, HEADS, generator=generator)
    return (q, k, v), {"g": g, "beta": beta, "use_qk_l2norm_in_kernel": True, "output_final_state": False}


def delta_of_channels(length: int, generator: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    (_, _, v), options = delta(length, generator)
    q, k = (torch.randn(1, length, HEADS, KEYS, generator=generator) for _ in range(2))
    g = -torch.rand(1, length, HEADS, KEYS, generator=generator)
    return (q, k, v), {**options, "g": g, "initial_state": None}


def mamba2(length: int, generator: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    x = torch.randn(1, length, HEADS, VALUES, generator=generator)
    dt = torch.randn(1, length, HEADS, generator=generator)
    b, c = (torch.randn(1, length, GROUPS, KEYS, generator=generator) for _ in range(2))
    fixed = torch.linspace(0.2, 1.4, HEADS)
    options = {"D": fixed, "dt_bias": fixed, "dt_softplus": True, "dt_limit": (0.3, 2.0)}
    return (x, dt, -fixed, b, c), {"chunk_size": 8, **options}


def mamba(length: int, generator: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    x, dt, z = (torch.randn(1, CHANNELS, length, generator=generator) for _ in range(3))
    b, c = (torch.randn(1, KEYS, length, generator=generator) for _ in range(2))
    rates = -torch.linspace(0.1, 2, CHANNELS * KEYS).view(CHANNELS, KEYS)
    bias = torch.linspace(-1, 1, CHANNELS)
    return (x, dt, rates, b, c), {"D": bias, "z": z, "delta_bias": bias, "delta_softplus": True}


class RowByRow(nn.Linear):
    """A linear whose bits do not depend on the number of rows, as those of an engine."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return torch.stack([functional.linear(row, self.weight) for row in input[0]])[None]


@cache
def lightning_module() -> MiniMaxLightningAttention:
    config = MiniMaxConfig(
        hidden_size=64, num_attention_heads=HEADS, head_dim=KEYS, num_hidden_layers=2, block_size=8
    )
    config.layer_types = ["linear_attention"] * 2
    with torch.random.fork_rng():
        torch.manual_seed(9)
        module = MiniMaxLightningAttention(config, 0).requires_grad_(False)
    for linear in (module.qkv_proj, module.output_gate, module.out_proj):
        linear.__class__ = RowByRow
    return module


def lightning(length: int, generator: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    x = torch.randn(1, length, 64, generator=generator)
    return (lightning_module(), x), {"position_embeddings": None, "attention_mask": None}


# The file of transformers that has a function, how inputs are made, and the dimension of tokens in results.
CASES: dict[str, tuple[str, Inputs, int]] = {
    "MiniMaxLightningAttention": ("minimax", lightning, 1),
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
    function = getattr(function, "forward", function)  # of a class of modules
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
    """With states inside of a chunk that are kept for others."""
    monkeypatch.setenv(SWITCH, kernels)
    generator = torch.Generator().manual_seed(1)
    made = [CASES[name][1](length, generator) for length in LENGTHS]
    got = packed(name, made, LENGTHS, [(0, 4, 5, 9), (0, 1), (0, 7, 20)], inside=2)
    for one, inputs in zip(got, made, strict=True):
        torch.testing.assert_close(one, whole(name, *inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernels", ["on", "off"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_bits_do_not_depend_on_pieces_neighbours_or_threads(
    name: str, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, kernels)
    made = [CASES[name][1](length, torch.Generator().manual_seed(length)) for length in LENGTHS]
    want = [packed(name, [made[i]], [LENGTHS[i]], [(0, LENGTHS[i])])[0] for i in range(len(made))]
    rng = random.Random(0)
    for threads in (1, 3):
        cuts = [(0, *sorted({rng.randrange(length) for _ in range(4)} - {0}), length) for length in LENGTHS]
        with of_threads(threads):
            got = packed(name, made, LENGTHS, cuts)
        assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))


def packed(
    name: str,
    made: Sequence[Any],
    lengths: Sequence[int],
    cuts: Sequence[tuple[int, ...]],
    *,
    inside: int = 0,
) -> list[torch.Tensor]:
    """Our function's outputs for each sequence, whose pieces end at its `cuts`, one piece of each a step.

    `inside`: keep the states after this many tokens of each longer piece too.
    """
    recorder = StateRecorder()
    FUNCTIONS[name](recorder, *made[0][0], **made[0][1])
    pools = StatePools(recorder.specs, 3 * len(made), torch.device("cpu"))
    got: list[list[torch.Tensor]] = [[] for _ in made]
    for step in range(max(map(len, cuts)) - 1):
        chunks, pieces = [], []
        for i, places in enumerate(cuts):
            if step + 1 < len(places):
                first, end = places[step : step + 2]
                tokens = Tokens("", 0, end, [0] * end, SamplingParams(), 0)
                source = 3 * i + (step + 1) % 2 if step else None
                stops = [(end, 3 * i + step % 2)]
                if 0 < inside < end - first:
                    stops.insert(0, (first + inside, 3 * i + 2))
                chunks.append(Chunk(tokens, first, end - first, end, source=source, stops=tuple(stops)))
                pieces.append((i, first, end))
        args = [
            joined([(made[i][0][n], lengths[i], a, b) for i, a, b in pieces]) for n in range(len(made[0][0]))
        ]
        options = {k: joined([(made[i][1][k], lengths[i], a, b) for i, a, b in pieces]) for k in made[0][1]}
        out = FUNCTIONS[name](pools.of_step(chunks), *args, **options)
        out = out[0] if isinstance(out, tuple) else out
        dim = CASES[name][2]
        for (i, _, _), rows in zip(pieces, out.split([b - a for _, a, b in pieces], dim=dim), strict=True):
            got[i].append(rows)
    return [torch.cat(each, dim=CASES[name][2]) for each in got]


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
    sequence = Tokens("", 0, 6, [0] * 6, SamplingParams(), 0)
    chunk = Chunk(sequence, 0, 6, 5, stops=((6, 1),))
    one, two = (
        FUNCTIONS["torch_chunk_gated_delta_rule"](pools.of_step([chunk]), *args, **options)[0]
        for _ in range(2)
    )
    assert torch.equal(one, two)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_number_does_not_depend_on_its_place(threads: int) -> None:
    with of_threads(threads):
        x = torch.randn(70_001, generator=torch.Generator().manual_seed(3))
        whole_tensor = softplus(x)
        for first, end in pairwise((0, 1, 4, 37, 40_000, 70_001)):
            assert torch.equal(softplus(x[first:end]), whole_tensor[first:end])
