"""Ranks multiply by their own parts of the codes of a quantised checkpoint.

With codes kept, a product on a CPU rounds activations, and each rank rounds its own share of them. So the
numbers are compared in float32, and with codes the bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
import torch

from serve_app.engine.batch import build_batch
from serve_app.engine.experts.packed import PLACE
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.sequence import Chunk
from serve_app.engine.weights.own_codes import load_codes_on_cpu
from serve_app.engine.weights.packed_linear import PackedLinear
from serve_app.models.split.cut import Cut
from serve_app.replica.accuracy import load_runner
from serve_app.replica.build import load_engine
from tests.support.engine_answers import answers, prompt, request
from tests.support.gguf_files import Type, make_gguf
from tests.support.quantised import checkpoint
from tests.support.ranks import divided_config, rank_processes, runners
from tests.support.tiny_llama import make_tiny_llama
from tests.support.tiny_models import make_sequence
from tests.unit.models.quantised.test_formats import FORMATS
from tests.unit.models.quantised.test_share import codes_of, packed_of
from tests.unit.models.split.test_split import check_equal

IDS: Final = [5, 9, 17, 33, 2, 64, 90, 12, 7]
CPU: Final = torch.device("cpu")
# As many heads of keys and values as ranks, and parts of whole vectors.
SIZES: Final = {
    "vocab_size": 128,
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
}
QUICK: Final = ("fp8 partial blocks", "gptq 4 symmetric")
NAMES: Final = [each if each in QUICK else pytest.param(each, marks=pytest.mark.full) for each in FORMATS]
GGUF_FAMILIES: Final = (
    *("llama", "mixtral", "qwen3", "phi3", "gemma3_text"),
    *("gpt_oss", "qwen3_5_text", "qwen3_5_moe_text"),
)
FAMILIES: Final = ["llama", pytest.param("qwen3_moe", marks=pytest.mark.full)]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", NAMES)
def test_ranks_have_the_numbers_of_each_format(name: str, family: str, ranks: int, tmp_path: Path) -> None:
    model = checkpoint(tmp_path, family, *FORMATS[name], **SIZES)
    check_equal(runners(tmp_path, ranks, max_adapters=0), model)


@pytest.mark.full
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", ["fp8 partial blocks", "gptq 4 act-order"])
@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_text", "deepseek_v3"])
def test_hybrids_and_latents_are_divided_as_codes(family: str, name: str, ranks: int, tmp_path: Path) -> None:
    """Parts of eight columns and fewer, within groups and blocks."""
    model = checkpoint(tmp_path, family, *FORMATS[name])
    check_equal(runners(tmp_path, ranks, max_adapters=0), model)


@pytest.mark.full
@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q4_1, Type.Q8_0], ids=lambda kind: kind.name)
@pytest.mark.parametrize("family", GGUF_FAMILIES)
def test_gguf_files_are_divided(family: str, kind: Type, tmp_path: Path) -> None:
    """Rows of heads lie in another order there, linears side by side, and halves of experts apart."""
    model = make_gguf(tmp_path / "m.gguf", family, lambda name: kind)
    check_equal(runners(tmp_path / "m.gguf", 2, max_adapters=0), model)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", NAMES)
def test_all_ranks_together_serve_the_bytes_of_one(
    name: str, family: str, ranks: int, tmp_path: Path
) -> None:
    checkpoint(tmp_path, family, *FORMATS[name], **SIZES)
    whole = one(tmp_path)
    parts = runners(tmp_path, ranks, dtype="auto", max_adapters=0)
    every = parts[0].threads.run(lambda groups: logits(parts[groups.every.rank].runner))
    assert all(torch.equal(each, every[0]) for each in every)
    wanted = logits(whole)
    assert (every[0] - wanted).norm() < 0.15 * wanted.norm()  # a router may choose another expert
    taken = sum(served_bytes(each.runner) for each in parts)
    if "act-order" in name:  # a CPU has no product for groups of several sizes
        assert served_bytes(whole) < taken < 3 * served_bytes(whole)
    else:
        assert taken == pytest.approx(served_bytes(whole), rel=0.02)


@pytest.mark.parametrize("columns", [8, 16, 24, 48])
def test_a_part_of_a_few_columns_has_a_product(columns: int, tmp_path: Path) -> None:
    """One that is smaller than the least group, and one that is no multiple of it."""
    part = codes_of(packed_of("gptq 8 a row", tmp_path).part(Cut(1, ((8, 8 + columns),), columns)))
    kept = load_codes_on_cpu(part, None, torch.float32, lasting=False)
    if kept is None:
        pytest.skip("without native products, weights are plain numbers")
    x = torch.randn(3, columns, generator=torch.Generator().manual_seed(0))
    wanted = x @ part.dequantise(torch.float32).T
    assert (kept.multiply(x, torch.float32) - wanted).norm() < 0.02 * wanted.norm()


@pytest.mark.full
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    "name", ["fp8 partial blocks", "gptq 4 act-order", "awq", "int-quantized", "nf4", "nvfp4 of modelopt"]
)
def test_many_prompts_have_the_same_tokens(name: str, ranks: int, tmp_path: Path) -> None:
    """In float32, with ranks in processes of their own."""
    folder = make_tiny_llama(tmp_path)  # for its tokenizer
    checkpoint(folder, "llama", *FORMATS[name], **SIZES)
    asked = [request(str(number), prompt(3 + number % 40, number)) for number in range(200)]
    settings = {"max_waiting": 300, "num_blocks": 256}
    wanted = answers(load_engine(divided_config(folder, 1, **settings), lambda _: None)[0], asked)
    with rank_processes(divided_config(folder, ranks, **settings)) as (engine, _):
        got = answers(engine, asked)
    assert {key: each.tokens for key, each in got.items()} == {
        key: each.tokens for key, each in wanted.items()
    }


def one(folder: Path) -> ModelRunner:
    """The runner of the whole model, with its codes."""
    return load_runner(divided_config(folder, 1, dtype="auto", max_adapters=0), lambda _: None)


def logits(runner: ModelRunner) -> torch.Tensor:
    chunk = Chunk(make_sequence("a", list(IDS), [0]), 0, len(IDS), 0)
    return runner.run(build_batch([chunk], 16, CPU))


def served_bytes(runner: ModelRunner) -> int:
    """The bytes of the weights by which a runner multiplies."""
    made = list(runner.module.modules())
    experts = [each for part in made if (each := getattr(part, PLACE, None)) is not None]
    linears = [each for each in made if isinstance(each, PackedLinear)]
    return sum(each.num_bytes for each in (*linears, *experts))
