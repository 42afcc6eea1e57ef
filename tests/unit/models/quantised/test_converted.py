"""Conversion at load: how much memory it takes, and what engine, check and footprint know of it."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.torch import load_file, save_file

from serve_app.config import ModelConfig
from serve_app.engine.weights.int8_int4 import INT8
from serve_app.models.errors import ModelLoadError
from serve_app.models.fingerprint import fingerprint
from serve_app.models.footprint import least_memory
from serve_app.models.quantised.converted import converted_tensors
from serve_app.models.quantised.formats import reader_for
from serve_app.models.quantised.plan import Plan
from serve_app.models.stored import stored_tensors
from serve_app.replica.model_check import check_model
from tests.support.mixtures import alone, runner_of, texts
from tests.support.packers import fp8, gptq, mxfp4
from tests.support.quantised import change, checkpoint, load

GPTQ: Final = {"quant_method": "gptq", "bits": 4, "group_size": 16}
MIB: Final = 2**20


@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe"])
def test_the_engine_quantises_converted_weights_like_any_others(tmp_path: Path, architecture: str) -> None:
    want = checkpoint(tmp_path, architecture, gptq, GPTQ)
    got = load(tmp_path)
    text = texts(1, random.Random(0))[0]
    runners = [runner_of(each, INT8) for each in (got, want)]
    assert torch.equal(*(alone(each, text) for each in runners))


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


@pytest.mark.parametrize(
    ("name", "pack", "settings"),
    [
        ("up", partial(gptq, group=128), {**GPTQ, "group_size": 128}),
        ("up", partial(fp8, block=(128, 128)), {"quant_method": "fp8", "weight_block_size": [128, 128]}),
        ("experts", mxfp4, {"quant_method": "mxfp4"}),
    ],
    ids=["gptq", "fp8", "mxfp4"],
)
def test_little_beside_the_weights_is_in_memory(
    tmp_path: Path, name: str, pack: Any, settings: dict[str, Any]
) -> None:
    """At most 1.15 times the weights and 64 MiB, although codes and float32 numbers pass through memory."""
    shape = (16, 1024, 1024) if name == "experts" else (2048, 1024)
    tensors, _ = pack(name, torch.randn(shape))
    count = 3 if name == "experts" else 24
    many = {f"{n}.{key}": each.clone() for n in range(count) for key, each in tensors.items()}
    save_file(many, tmp_path / "model.safetensors")
    del tensors, many
    plan = Plan.of(stored_tensors(tmp_path), reader_for(settings))
    found = list(converted_tensors(plan, torch.device("cpu"), torch.bfloat16).values())
    assert len(found) == count
    with ThreadPoolExecutor(4) as pool:  # as transformers does
        list(pool.map(lambda each: each.to().sum(), found[:4]))  # threads allocate once
        Path("/proc/self/clear_refs").write_text("5")  # begins the peak anew
        before = _memory("VmRSS")
        weights = list(pool.map(lambda each: each.to(), found))
    size = sum(each.nbytes for each in weights)
    assert size >= 96 * MIB
    assert _memory("VmHWM") - before < 1.15 * size + 64 * MIB


def _memory(field: str) -> int:
    """Bytes that this process has (VmRSS), or had at most (VmHWM)."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[field].split()[0]) * 1024
