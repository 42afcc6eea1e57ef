"""Conversion at load: how much memory it takes, and what engine, check and footprint know of it."""

from __future__ import annotations

import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from serve_app.config import ModelConfig
from serve_app.engine.kernels import native
from serve_app.engine.weights.format import Weight
from serve_app.engine.weights.int8_int4 import INT8
from serve_app.engine.weights.own_codes import load_codes_on_cpu
from serve_app.models.catalogue import demo_folder
from serve_app.models.errors import ModelLoadError
from serve_app.models.fingerprint import fingerprint
from serve_app.models.footprint import least_memory
from serve_app.models.quantised.converted import converted_tensors
from serve_app.models.quantised.formats import reader_for
from serve_app.models.quantised.plan import Plan
from serve_app.models.split.cut import Cut
from serve_app.models.stored import stored_tensors
from serve_app.replica.model_check import check_model
from tests.support.local_model import local_model
from tests.support.mixtures import alone, runner_of, texts
from tests.support.packers import fp8, gptq
from tests.support.quantised import change, checkpoint, load
from tests.unit.models.test_loader import edit

GPTQ: Final = {"quant_method": "gptq", "bits": 4, "group_size": 16}
MIB: Final = 2**20


@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe"])
def test_the_engine_quantises_converted_weights_like_any_others(tmp_path: Path, architecture: str) -> None:
    want = checkpoint(tmp_path, architecture, gptq, GPTQ)
    got = load(tmp_path)
    text = texts(1, random.Random(0))[0]
    runners = [runner_of(each, INT8) for each in (got, want)]
    assert torch.equal(*(alone(each, text) for each in runners))


@pytest.mark.parametrize("dtype", ["float32", "auto"])  # plain numbers, and codes
def test_a_quantised_model_answers_over_http_and_takes_adapters(tmp_path: Path, dtype: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(demo_folder("demo-chat"), folder)
    packed: dict[str, torch.Tensor] = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        linear = name.endswith("_proj.weight")
        found = {name: weight}
        if linear:
            found, _ = gptq(name.removesuffix(".weight"), weight.float(), bits=8, group=64, act_order=True)
        packed |= found
    save_file(packed, folder / "model.safetensors")
    edit(folder / "config.json", quantization_config={**GPTQ, "bits": 8, "group_size": 64, "desc_act": True})
    config = ModelConfig(
        name="m", source=str(folder), device="cpu", dtype=dtype, adapters={"pirate": "demo:demo-lora"}
    )
    ask = {"temperature": 0, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    with local_model(config) as url:
        answers = [
            httpx.post(f"{url}/v1/chat/completions", json={**ask, "model": model}, timeout=60).json()
            for model in ("m", "m:pirate")
        ]
    assert [each["choices"][0]["message"]["content"] for each in answers] == [
        "The capital of France is Paris.",
        "Arr! The capital of France be Paris, matey!",
    ]


def test_the_check_says_from_what_to_what_and_counts_the_served_type(tmp_path: Path) -> None:
    plain = checkpoint(tmp_path, "llama", gptq, GPTQ)
    for folder in (tmp_path, tmp_path / "plain"):
        config = ModelConfig(name="m", source=str(folder), dtype="bfloat16", device="cuda")
        found = check_model(config, lambda line: None, memory=2**33).model
        assert found.weight_bytes == 2 * sum(each.numel() for each in plain.parameters())
        assert found.converted_from == ("GPTQ, 4 bits, groups of 16" if folder == tmp_path else None)
        assert least_memory(config) == least_memory(
            config.model_copy(update={"source": str(tmp_path / "plain")})
        )
    kept = ModelConfig(name="m", source=str(tmp_path), device="cuda")  # on a GPU codes stay codes
    checked = check_model(kept, lambda line: None, memory=2**33).model
    assert checked.stays_codes
    stored = load_file(tmp_path / "model.safetensors")
    codes = sum(each.nbytes for name, each in stored.items() if not name.endswith((".weight", ".bias")))
    others = sum(2 * each.numel() for name, each in stored.items() if name.endswith((".weight", ".bias")))
    assert checked.weight_bytes in (codes + others, codes + 2 * others)  # in the type that config.json has
    least = [least_memory(each) for each in (kept, kept.model_copy(update={"dtype": "bfloat16"}))]
    assert least[0] is not None
    assert least[1] is not None
    assert least[0] < least[1]
    on_cpu = kept.model_copy(update={"device": "cpu"})
    checked = check_model(on_cpu, lambda line: None, memory=2**33).model
    assert checked.stays_codes
    linears = sum(each.numel() for name, each in plain.named_parameters() if name.endswith("_proj.weight"))
    others = sum(each.numel() for each in plain.parameters()) - linears
    assert checked.weight_bytes == linears // 2 + linears // 16 * 5 + others * 4
    change(tmp_path, model__layers__0__mlp__up_proj__scales=None)
    with pytest.raises(ModelLoadError, match=r"up_proj\.scales is missing"):
        check_model(config.model_copy(update={"source": str(tmp_path)}), lambda line: None, memory=2**33)


def test_codes_and_scales_count_for_the_fingerprint(tmp_path: Path) -> None:
    checkpoint(tmp_path, "llama", fp8, {"quant_method": "fp8"})
    config = ModelConfig(name="m", source=str(tmp_path))
    seen = {fingerprint(config, folder, "float32") for folder in (tmp_path, tmp_path / "plain")}
    for part in ("weight", "weight_scale"):
        name = f"model.layers.1.mlp.up_proj.{part}"
        value = load_file(tmp_path / "model.safetensors")[name].float() * 2
        dtype = torch.float8_e4m3fn if part == "weight" else torch.float32
        change(tmp_path, **{name.replace(".", "__"): value.clamp(-448, 448).to(dtype)})
        seen.add(fingerprint(config, tmp_path, "float32"))
    assert len(seen) == 4


def words(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32)


CODES: Final[
    dict[str, tuple[dict[str, torch.Tensor], dict[str, Any]]]
] = {  # of 2,097,152 or 16,777,216 weights
    "gptq": (
        {"w.qweight": words(128, 2048), "w.qzeros": words(8, 256), "w.scales": torch.ones(8, 2048).half()},
        {**GPTQ, "group_size": 128},
    ),
    "fp8": (
        {"w.weight": torch.ones(2048, 1024).to(torch.float8_e4m3fn), "w.weight_scale_inv": torch.ones(16, 8)},
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
    ),
    "mxfp4": (
        {
            "w_blocks": words(16, 1024, 32, 4).view(torch.uint8),
            "w_scales": torch.full((16, 1024, 32), 120, dtype=torch.uint8),
        },
        {"quant_method": "mxfp4"},
    ),
}


def half(dim: int | None, name: str, shape: tuple[int, ...]) -> Cut | None:
    """The second half of a matrix or of each expert's, along `dim`; None: all of it."""
    if dim is None:
        return None
    size = shape[dim] // 2
    return Cut(len(shape) + dim, ((size, 2 * size),), size)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "dim"), [*((name, None) for name in CODES), ("fp8", -2), ("gptq", -1), ("mxfp4", -1)]
)
def test_little_beside_the_weights_is_in_memory(tmp_path: Path, name: str, dim: int | None) -> None:
    """At most 1.15 times the weights and 96 MiB, although codes and float32 numbers pass through memory, also
    where a rank keeps half of each."""
    tensors, settings = CODES[name]
    count = (6 if name == "mxfp4" else 48) * (1 if dim is None else 2)
    many = {f"{n}.{key}": each.clone() for n in range(count) for key, each in tensors.items()}
    save_file(many, tmp_path / "model.safetensors")
    del many
    plan = Plan.of(stored_tensors(tmp_path), reader_for(settings)).part(partial(half, dim))
    found = list(converted_tensors(plan, torch.device("cpu"), torch.bfloat16).values())
    assert len(found) == count
    with ThreadPoolExecutor(4) as pool:  # as transformers does
        list(pool.map(lambda each: each.to().sum(), found[:4]))  # threads allocate once
        Path("/proc/self/clear_refs").write_text("5")  # begins the peak anew
        before = _memory("VmRSS")
        weights = list(pool.map(lambda each: each.to(), found))
    size = sum(each.nbytes for each in weights)
    assert size == 192 * MIB
    assert _memory("VmHWM") - before < 1.15 * size + 96 * MIB


@pytest.mark.parametrize(
    ("name", "dim"), [("gptq", None), ("mxfp4", None), ("gptq", -2), ("gptq", -1), ("mxfp4", -1)]
)
def test_little_beside_the_codes_is_in_memory(tmp_path: Path, name: str, dim: int | None) -> None:
    """At most 1.15 times what the packed codes take and 96 MiB, also where a rank keeps half of each."""
    if native() is None:
        pytest.skip("without native products, weights are plain numbers")
    tensors, settings = CODES[name]
    count = (6 if name == "mxfp4" else 48) * (1 if dim is None else 2)
    save_file(
        {f"{n}.{key}": each.clone() for n in range(count) for key, each in tensors.items()},
        tmp_path / "model.safetensors",
    )
    plan = Plan.of(stored_tensors(tmp_path), reader_for(settings)).part(partial(half, dim))
    found = converted_tensors(plan, torch.device("cpu"), torch.bfloat16, keep_codes=True)

    def packed(weight: Any) -> list[Weight]:
        matrices = [each.T for each in weight] if weight.dim() == 3 else [weight]
        made = [load_codes_on_cpu(each.matrix(), None, torch.bfloat16, lasting=False) for each in matrices]
        return [each for each in made if each is not None]

    weights = [each.to() for each in found.values()]
    packed(weights[0])  # memory that is allocated once
    Path("/proc/self/clear_refs").write_text("5")  # begins the peak anew
    before = _memory("VmRSS")
    kept = [made for each in weights for made in packed(each)]
    size = sum(each.num_bytes for each in kept)
    assert 0.25 * 192 * MIB < size < 0.34 * 192 * MIB
    assert _memory("VmHWM") - before < 1.15 * size + 96 * MIB


def _memory(field: str) -> int:
    """Bytes that this process has (VmRSS), or had at most (VmHWM)."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[field].split()[0]) * 1024
