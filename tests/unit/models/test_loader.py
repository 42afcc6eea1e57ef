"""Loading: from a folder to a module that gives the saved model's logits; every refusal says what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from serve_app.config import EngineConfig, ModelConfig
from serve_app.engine.attention.reference import ReferenceAttention
from serve_app.engine.batch import build_batch
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.sequence import Chunk, Sequence
from serve_app.models.dtype import choose_device, choose_dtype, cpu_has_bfloat16
from serve_app.models.errors import ModelLoadError
from serve_app.models.loader import LoadedModel, load_model
from serve_app.types import SamplingParams

TINY: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def save(folder: Path, architecture: str = "llama", dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    torch.manual_seed(0)
    config = AutoConfig.for_model(architecture, **TINY)
    model = AutoModelForCausalLM.from_config(config).eval().to(dtype)
    model.generation_config = GenerationConfig(eos_token_id=[5, 2])
    model.save_pretrained(folder)
    return model


def load(source: object, lines: list[str] | None = None, **settings: Any) -> LoadedModel:
    config = ModelConfig(**{"name": "m", "source": str(source), "device": "cpu", **settings})
    return load_model(config, (lines if lines is not None else []).append)


def edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma2"])
def test_a_saved_model_gives_its_logits_through_loader_and_runner(tmp_path: Path, architecture: str) -> None:
    original = save(tmp_path, architecture)
    lines: list[str] = []
    loaded = load(tmp_path, lines)
    assert loaded.folder == tmp_path.resolve()
    assert loaded.architecture == type(original).__name__
    assert (loaded.dtype, loaded.context_window, loaded.revision) == (torch.float32, 64, None)
    assert not loaded.module.training
    assert any("loading" in line and loaded.architecture in line for line in lines)
    runner = ModelRunner(
        loaded.module,
        backend=ReferenceAttention(),
        dtype=loaded.dtype,
        device=loaded.device,
        config=EngineConfig(block_size=4, num_blocks=8),
        context_window=loaded.context_window,
    )
    text = list(range(3, 17))
    sequence = Sequence(
        request_id="r",
        index=0,
        prompt_len=14,
        token_ids=text,
        sampling=SamplingParams(),
        seed=0,
        block_table=[4, 1, 6, 2],
    )
    got = [runner.run(build_batch([Chunk(sequence, s, n, s)], 4, runner.device)) for s, n in ((0, 9), (9, 5))]
    want = original(torch.tensor([text]), use_cache=False).logits[0]
    torch.testing.assert_close(torch.cat(got), want, rtol=0, atol=1e-5)


def test_end_tokens_come_from_every_file_that_names_them(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|end|>"}}))
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": [{"id": 7, "content": "<|end|>"}]}))
    assert load(tmp_path).eos_token_ids == (5, 2, 7)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"<|end|>": 2000}}}))
    assert load(tmp_path).eos_token_ids == (5, 2)  # 2000 is beyond the vocabulary


def test_weights_that_may_run_code_are_refused_by_name(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(ModelLoadError, match=r"no \.safetensors weights \(only pytorch_model\.bin"):
        load(tmp_path)


def test_a_checkpoint_that_needs_its_own_code_is_refused(tmp_path: Path) -> None:
    save(tmp_path)
    marker = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(marker)!r}, 'w')")
    edit(
        tmp_path / "config.json",
        model_type="evil",
        architectures=["EvilForCausalLM"],
        auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"},
    )
    with pytest.raises(ModelLoadError, match=r"EvilForCausalLM.*never run here"):
        load(tmp_path)
    assert not marker.exists()


def test_a_known_architecture_is_loaded_without_the_code_beside_it(tmp_path: Path) -> None:
    save(tmp_path)
    marker = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(marker)!r}, 'w')")
    edit(tmp_path / "config.json", auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"})
    assert type(load(tmp_path).module).__module__.startswith("transformers.")
    assert not marker.exists()


def test_an_unknown_type_is_refused(tmp_path: Path) -> None:
    save(tmp_path)
    edit(tmp_path / "config.json", model_type="newer_than_us")
    with pytest.raises(ModelLoadError, match="does not know its type"):
        load(tmp_path)


def test_an_unsupported_architecture_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "bloom", "architectures": ["BloomForCausalLM"]})
    )
    (tmp_path / "model.safetensors").write_bytes(b"not weights at all")
    with pytest.raises(ModelLoadError, match=r"BloomForCausalLM.*ALiBi"):
        load(tmp_path)


def test_missing_tensors_are_not_made_up(tmp_path: Path) -> None:
    save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"lack 1 tensors.*layers\.1\.mlp\.up_proj"):
        load(tmp_path)


def test_damaged_files_are_errors_of_ours(tmp_path: Path) -> None:
    save(tmp_path)
    weights = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[:100])
    with pytest.raises(ModelLoadError, match="could not be read"):
        load(tmp_path)
    edit(tmp_path / "config.json", dtype=None)
    with pytest.raises(ModelLoadError, match="could not be read"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match="not JSON"):
        load(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ModelLoadError, match=r"no config\.json"):
        load(tmp_path)


@pytest.mark.parametrize("source", ["/nowhere/at/all", "./nowhere", "demo:nowhere", "a/b/c"])
def test_a_source_that_is_not_there_is_named(source: str) -> None:
    with pytest.raises(ModelLoadError, match=source.removeprefix("demo:")):
        load(source)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_without_a_gpu_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="device"):
        choose_device("cuda")
    assert choose_device("auto").type == "cpu"


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
def test_auto_keeps_the_checkpoints_type_where_the_device_can(
    stored: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    cpu = torch.bfloat16 if cpu_has_bfloat16() else torch.float32
    assert choose_dtype("auto", stored, torch.device("cuda"), print) == stored
    want = torch.float32 if stored == torch.float32 else cpu
    assert choose_dtype("auto", stored, torch.device("cpu"), print) == want


def test_a_gpu_without_bfloat16_runs_float16_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    lines: list[str] = []
    cuda = torch.device("cuda")
    assert choose_dtype("auto", torch.bfloat16, cuda, lines.append) == torch.float16
    assert "this GPU has no bfloat16" in lines[0]
    assert choose_dtype("auto", torch.float32, cuda, lines.append) == torch.float32
    assert choose_dtype("bfloat16", torch.bfloat16, cuda, lines.append) == torch.bfloat16
    assert len(lines) == 1
    wide = choose_dtype("auto", torch.bfloat16, cuda, lines.append, model_type="gemma2")
    assert (wide, lines[1].split(": ")[-1]) == (torch.float32, "running in float32")


def test_float16_on_a_cpu_is_replaced_and_reported() -> None:
    lines: list[str] = []
    assert choose_dtype("float16", torch.float16, torch.device("cpu"), lines.append) != torch.float16
    assert "float16" in lines[0]
    assert choose_dtype("bfloat16", torch.float32, torch.device("cpu"), lines.append) == torch.bfloat16


def test_the_type_is_read_from_the_weights_when_the_configuration_is_silent(tmp_path: Path) -> None:
    save(tmp_path, dtype=torch.bfloat16)
    settings = json.loads((tmp_path / "config.json").read_text())
    settings.pop("dtype", None)
    (tmp_path / "config.json").write_text(json.dumps(settings))
    want = torch.bfloat16 if cpu_has_bfloat16() else torch.float32
    assert load(tmp_path).dtype == want
    assert load(tmp_path, dtype="float32").module.dtype == torch.float32


def test_auto_keeps_bfloat16_on_a_cpu_whose_kernels_are_fast_in_it() -> None:
    cpu = torch.device("cpu")
    assert choose_dtype("auto", torch.bfloat16, cpu, print, fast_bfloat16=True) == torch.bfloat16
    assert choose_dtype("auto", torch.float16, cpu, print, fast_bfloat16=True) == torch.bfloat16
    assert choose_dtype("auto", torch.float32, cpu, print, fast_bfloat16=True) == torch.float32
