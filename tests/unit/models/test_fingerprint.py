"""The digest of all that decides over the tokens of a model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from serve_app.config import EngineConfig, GenerationDefaults, ModelConfig
from serve_app.models.fingerprint import BLOCK, fingerprint

CONFIG = ModelConfig(name="m", source="anywhere", adapters={})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of two files of weights, with all kinds of other files."""
    made = tmp_path / "model"
    (made / "additional_chat_templates").mkdir(parents=True)
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        (made / name).write_text(json.dumps({"of": name}))
    for name in ("chat_template.jinja", "additional_chat_templates/tools.jinja", "merges.txt"):
        (made / name).write_text(name)
    tensors = {"a": torch.arange(5000.0), "b": torch.ones(3, 4), "c": torch.zeros(0)}
    save_file({"a": tensors["a"]}, made / "model-00001-of-00002.safetensors")
    save_file({"b": tensors["b"], "c": tensors["c"]}, made / "model-00002-of-00002.safetensors")
    index = {name: f"model-0000{1 + (name > 'a')}-of-00002.safetensors" for name in tensors}
    (made / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return made


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    made = tmp_path / "adapter"
    made.mkdir()
    (made / "adapter_config.json").write_text("{}")
    save_file({"lora_A": torch.ones(2, 8)}, made / "adapter_model.safetensors")
    return made


def of(folder: Path, dtype: str = "torch.float32", **changes: object) -> str:
    return fingerprint(CONFIG.model_copy(update=changes), folder, dtype)


def test_a_copy_in_another_place_is_the_same_model(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "elsewhere" / "by-another-name")
    (copy / "README.md").write_text("of the copy")
    (copy / "original").mkdir()
    (copy / "original" / "params.json").write_text("{}")
    assert of(copy) == of(folder)
    assert len(of(folder)) == 32


def test_the_same_weights_in_one_file_are_the_same_model(folder: Path) -> None:
    before = of(folder)
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
        path.unlink()
    (folder / "model.safetensors.index.json").unlink()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert of(folder) == before


def edit_text(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_text("changed")

    return change


def edit_number(name: str, place: int) -> Callable[[Path], None]:
    """Change a number of a tensor; `place` counts from the end of the file."""

    def change(folder: Path) -> None:
        path = folder / name
        data = bytearray(path.read_bytes())
        data[len(data) - place] ^= 1
        path.write_bytes(bytes(data))

    return change


def reshape(folder: Path) -> None:
    save_file({"b": torch.ones(4, 3), "c": torch.zeros(0)}, folder / "model-00002-of-00002.safetensors")


def rename(folder: Path) -> None:
    save_file({"d": torch.ones(3, 4), "c": torch.zeros(0)}, folder / "model-00002-of-00002.safetensors")


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
EDITS = {
    "config": edit_text("config.json"),
    "generation_config": edit_text("generation_config.json"),
    "tokenizer": edit_text("tokenizer.json"),
    "tokenizer_config": edit_text("tokenizer_config.json"),
    "template": edit_text("chat_template.jinja"),
    "other template": edit_text("additional_chat_templates/tools.jinja"),
    "merges": edit_text("merges.txt"),
    "a new file": edit_text("added_tokens.json"),
    "first number": edit_number(FIRST, 5000 * 4),
    "middle number": edit_number(FIRST, 5000 * 2 - BLOCK // 2),
    "last number": edit_number(FIRST, 1),
    "any number of a small tensor": edit_number(SECOND, 20),
    "a shape": reshape,
    "a name": rename,
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_every_part_of_the_folder_counts(folder: Path, edit: Callable[[Path], None]) -> None:
    before = of(folder)
    edit(folder)
    assert of(folder) != before


SETTINGS: dict[str, dict[str, object]] = {
    "dtype": {"dtype": "torch.bfloat16"},
    "generation_config": {"generation_config": "none"},
    "own defaults": {"generation_config": GenerationDefaults(temperature=0.5)},
    "tool_format": {"tool_format": "hermes"},
    "reasoning_format": {"reasoning_format": "think"},
    "compact_json": {"compact_json": True},
    "max_output_tokens": {"max_output_tokens": 7},
    "window": {"engine": EngineConfig(max_model_len=64)},
    "watermark": {"engine": EngineConfig(watermark_key=5)},
    "processors": {"engine": EngineConfig(logits_processors={"a": "b.c:d"})},
}


@pytest.mark.parametrize("changes", SETTINGS.values(), ids=SETTINGS)
def test_every_setting_that_changes_tokens_counts(folder: Path, changes: dict[str, object]) -> None:
    assert of(folder, **changes) != of(folder)  # type: ignore[arg-type]


def test_settings_that_change_no_token_do_not_count(folder: Path) -> None:
    engine = EngineConfig(max_sequences=3, max_step_tokens=99, block_size=16, num_blocks=50, ngram_draft=4)
    changes = {"name": "other", "device": "cpu", "threads": 1, "attention": "reference", "engine": engine}
    assert of(folder, **changes) == of(folder)


def test_the_operators_chat_template_counts_by_its_content(folder: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one.jinja", tmp_path / "two.jinja"
    one.write_text("a")
    two.write_text("a")
    same = of(folder, chat_template=one)
    assert same == of(folder, chat_template=two) != of(folder)
    two.write_text("b")
    assert of(folder, chat_template=two) != same


def test_the_operators_adapters_count_by_name_and_content(
    folder: Path, adapter: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(adapter, tmp_path / "copy")
    same = of(folder, adapters={"x": str(adapter)})
    assert same == of(folder, adapters={"x": str(copy)})
    assert len({same, of(folder), of(folder, adapters={"y": str(adapter)})}) == 3
    save_file({"lora_A": torch.zeros(2, 8)}, copy / "adapter_model.safetensors")
    assert of(folder, adapters={"x": str(copy)}) != same


def test_a_model_with_a_cache_of_codes_is_another_one(folder: Path) -> None:
    assert of(folder, engine=EngineConfig(kv_cache_dtype="auto")) == of(folder)
    assert of(folder, engine=EngineConfig(kv_cache_dtype="int8")) != of(folder)


def test_a_quantised_model_is_another_one(folder: Path) -> None:
    assert of(folder, quantization="none") == of(folder)
    assert len({of(folder), of(folder, quantization="int8"), of(folder, quantization="int4")}) == 3
