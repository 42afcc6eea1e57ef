"""Checkpoints that are not whole, not theirs, or not numbers: each is refused or said, with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from serve_app.models.errors import ModelLoadError
from tests.support.families import small_config
from tests.support.tiny_models import make_model
from tests.unit.models.test_loader import edit, load, save

NAME = "model.safetensors"
INDEX = "model.safetensors.index.json"


def change(folder: Path, **tensors: torch.Tensor) -> None:
    """Write tensors over those of the checkpoint, or beside them; `__` is a dot."""
    whole = load_file(folder / NAME)
    changed = {**whole, **{name.replace("__", "."): tensor for name, tensor in tensors.items()}}
    save_file(changed, folder / NAME, metadata={"format": "pt"})


def split(folder: Path) -> list[str]:
    """Save the model anew in several files; returns their names."""
    save(folder).save_pretrained(folder, max_shard_size="20KB")
    (folder / NAME).unlink()
    shards = sorted(path.name for path in folder.glob("*.safetensors"))
    assert len(shards) > 1
    return shards


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_weight_that_is_no_number_is_refused_by_its_name(tmp_path: Path, value: float) -> None:
    save(tmp_path)
    broken = load_file(tmp_path / NAME)["model.layers.1.mlp.up_proj.weight"]
    broken[3, 5] = value
    change(tmp_path, model__layers__1__mlp__up_proj__weight=broken)
    with pytest.raises(ModelLoadError, match=r"not finite in model\.layers\.1\.mlp\.up_proj\.weight.*fetch"):
        load(tmp_path)


@pytest.mark.parametrize(
    "name", ["model__layers__0__self_attn__q_proj__bias", "model__layers__1__self_attn__q_norm__weight"]
)
def test_a_tensor_that_a_layer_would_ignore_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    save(tmp_path)
    change(tmp_path, **{name: torch.ones(32)})
    with pytest.raises(ModelLoadError, match=rf"do not use, such as {name.replace('__', '.')}.*config\.json"):
        load(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "vision_tower__layers__0__weight",
        "model__layers__2__eh_proj__weight",  # a layer that only drafts
        "model__layers__0__self_attn__masked_bias",  # a buffer of old releases
    ],
)
def test_a_tensor_of_a_part_that_is_not_there_is_said(tmp_path: Path, name: str) -> None:
    original = save(tmp_path)
    change(tmp_path, **{name: torch.ones(32)})
    lines: list[str] = []
    module = load(tmp_path, lines).module
    assert any(f"1 tensors are not used by {type(original).__name__}, such as" in line for line in lines)
    assert torch.equal(module.lm_head.weight, original.lm_head.weight)


def test_a_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    save(tmp_path)
    change(tmp_path, lm_head__weight=torch.ones(96, 31))
    with pytest.raises(ModelLoadError, match="could not be read"):
        load(tmp_path)


def test_shards_are_read_and_a_missing_one_is_named(tmp_path: Path) -> None:
    shards = split(tmp_path)
    assert load(tmp_path).architecture == "LlamaForCausalLM"
    (tmp_path / shards[1]).unlink()
    with pytest.raises(ModelLoadError, match=rf"lacks 1 of the files.*{shards[1]}.*fetch the model again"):
        load(tmp_path)


def test_a_missing_or_damaged_index_is_named(tmp_path: Path) -> None:
    split(tmp_path)
    index = (tmp_path / INDEX).read_text()
    for content, reason in (("{", "not JSON"), ("{}", "no weight_map"), (None, f"but no {INDEX}")):
        (tmp_path / INDEX).write_text(content or index)
        if content is None:
            (tmp_path / INDEX).unlink()
        with pytest.raises(ModelLoadError, match=reason):
            load(tmp_path)


def test_weights_of_another_name_are_named(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / NAME).rename(tmp_path / "consolidated.safetensors")
    with pytest.raises(ModelLoadError, match=r"neither model\.safetensors nor .*consolidated"):
        load(tmp_path)


def test_a_file_and_an_adapter_are_no_model(tmp_path: Path) -> None:
    save(tmp_path)
    with pytest.raises(ModelLoadError, match="is a file; `source` is a GGUF file, or the folder"):
        load(tmp_path / NAME)
    (tmp_path / "config.json").rename(tmp_path / "adapter_config.json")
    with pytest.raises(ModelLoadError, match="LoRA adapter: set `source` to the model"):
        load(tmp_path)


def test_a_configuration_that_nothing_can_be_built_from_is_named(tmp_path: Path) -> None:
    save(tmp_path)
    edit(tmp_path / "config.json", hidden_act="no such function")
    with pytest.raises(ModelLoadError, match=r"config\.json.*no such function"):
        load(tmp_path)


def test_a_model_that_reads_images_too_is_served_with_text_and_says_so(tmp_path: Path) -> None:
    make_model(small_config("gemma3")).save_pretrained(tmp_path)
    lines: list[str] = []
    assert load(tmp_path, lines).architecture == "Gemma3ForConditionalGeneration"
    assert any(line.startswith("text only:") for line in lines)


def test_float16_on_a_cpu_is_said_with_what_it_costs(tmp_path: Path) -> None:
    save(tmp_path, dtype=torch.float16)
    lines: list[str] = []
    dtype = load(tmp_path, lines).dtype
    assert any("float16 is slow on a CPU" in line for line in lines)
    assert any("8 significant bits" in line for line in lines) == (dtype == torch.bfloat16)
    lines.clear()
    assert load(tmp_path, lines, dtype="float32").dtype == torch.float32
    assert not any("float16 is slow" in line for line in lines)
