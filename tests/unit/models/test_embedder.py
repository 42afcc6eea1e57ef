"""Which models embed, what their files say, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from serve_app.config import EngineConfig, ModelConfig
from serve_app.models.catalogue import demo_folder
from serve_app.models.embedder import first_position, is_embedder, load_embedder
from serve_app.models.errors import ModelLoadError
from serve_app.models.sentence import SentenceFormat, read_sentence_format
from tests.support.tiny_encoders import DECODERS, ENCODERS, WINDOW, save, tiny

MEAN = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}


def config(folder: Path, **fields: Any) -> ModelConfig:
    return ModelConfig(**{"name": "tiny", "source": str(folder), "device": "cpu", **fields})


def quiet(line: str) -> None:
    return None


@pytest.mark.parametrize("kind", [*ENCODERS, *DECODERS])
def test_a_model_without_a_head_is_an_embedder(kind: str, tmp_path: Path) -> None:
    save(tiny(kind), tmp_path)
    assert is_embedder(config(tmp_path), tmp_path)
    assert not is_embedder(config(tmp_path, task="generate"), tmp_path)
    loaded = load_embedder(config(tmp_path), quiet)
    assert loaded.window == WINDOW
    assert loaded.causal == (kind in DECODERS)
    assert loaded.sentence.poolings == ()


@pytest.mark.parametrize("name", ["Llama4ForConditionalGeneration", "Qwen3VLForConditionalGeneration"])
def test_a_model_that_reads_more_than_text_generates(name: str, tmp_path: Path) -> None:
    """Transformers lists the first of them among the models without a head."""
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [name]}))
    assert not is_embedder(config(tmp_path), tmp_path)


def test_a_language_model_generates_unless_its_files_or_its_owner_say_otherwise(tmp_path: Path) -> None:
    AutoModelForCausalLM.from_config(tiny("qwen3").config).save_pretrained(tmp_path)
    assert not is_embedder(config(tmp_path), tmp_path)
    assert is_embedder(config(tmp_path, task="embed"), tmp_path)
    (tmp_path / "modules.json").write_text("[]")
    assert is_embedder(config(tmp_path), tmp_path)
    assert load_embedder(config(tmp_path), quiet).causal


def test_demo_models_are_what_they_are() -> None:
    assert not is_embedder(ModelConfig(name="demo-chat"), demo_folder("demo-chat"))
    assert is_embedder(ModelConfig(name="demo-embed"), demo_folder("demo-embed"))


@pytest.mark.parametrize(
    ("settings", "poolings"),
    [
        (MEAN, ("mean",)),
        ({"pooling_mode_cls_token": True}, ("cls",)),
        ({"pooling_mode_lasttoken": True}, ("last",)),
        ({"pooling_mode_weightedmean_tokens": True}, ("weighted_mean",)),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, ("mean_sqrt_len",)),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, ("max", "mean")),
        ({"pooling_mode": "lasttoken"}, ("last",)),
        ({"pooling_mode": ["cls", "mean"]}, ("cls", "mean")),
    ],
    ids=str,
)
def test_the_pooling_is_the_models_own(
    settings: dict[str, Any], poolings: tuple[str, ...], tmp_path: Path
) -> None:
    save(tiny("bert"), tmp_path, pooling=settings, normalize=True)
    found = read_sentence_format(tmp_path)
    assert (found.poolings, found.normalized, found.pools_prompt) == (poolings, True, True)


@pytest.mark.parametrize("settings", [{}, {"pooling_mode_magic": True}, {"pooling_mode": "magic"}], ids=str)
def test_an_unknown_pooling_is_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    save(tiny("bert"), tmp_path, pooling=settings)
    with pytest.raises(ModelLoadError, match="pooling"):
        read_sentence_format(tmp_path)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "sentence_transformers.models.Dense", "path": "2_Dense"},
        {"type": "sentence_transformers.models.Transformer", "path": "0_Transformer"},
        {"type": "custom_st.Transformer", "path": "elsewhere"},
    ],
    ids=lambda part: part["type"],
)
def test_an_unknown_part_is_refused_by_name(part: dict[str, str], tmp_path: Path) -> None:
    save(tiny("bert"), tmp_path, files={"modules.json": [part]})
    with pytest.raises(ModelLoadError, match=part["type"].rpartition(".")[2]):
        load_embedder(config(tmp_path), quiet)


def test_files_about_sentences_are_read(tmp_path: Path) -> None:
    files = {
        "sentence_bert_config.json": {"max_seq_length": 20, "do_lower_case": True},
        "config_sentence_transformers.json": {
            "prompts": {"document": "doc: "},
            "default_prompt_name": "document",
        },
    }
    save(tiny("bert"), tmp_path, pooling={**MEAN, "include_prompt": False}, files=files)
    expected = SentenceFormat(
        poolings=("mean",), pools_prompt=False, prompt="doc: ", lower_case=True, max_length=20
    )
    assert read_sentence_format(tmp_path) == expected
    assert load_embedder(config(tmp_path), quiet).window == 20
    longer = config(tmp_path, engine=EngineConfig(max_model_len=40))
    assert load_embedder(longer, quiet).window == 40


def test_nothing_said_is_nothing_assumed(tmp_path: Path) -> None:
    assert read_sentence_format(tmp_path) == SentenceFormat()


def test_positions_behind_the_padding_shorten_the_window(tmp_path: Path) -> None:
    module = tiny("roberta")
    assert first_position(module) == 2
    assert first_position(tiny("bert")) == first_position(tiny("qwen3")) == 0
    save(module, tmp_path)
    wide = config(tmp_path, engine=EngineConfig(max_model_len=WINDOW + 2))
    assert load_embedder(wide, quiet).window == WINDOW


def test_a_checkpoint_without_a_pooler_is_whole_and_one_without_a_layer_is_not(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    save(tiny("bert"), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    kept = {name: value for name, value in weights.items() if not name.startswith("pooler.")}
    assert kept.keys() != weights.keys()
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    load_embedder(config(tmp_path), quiet)
    kept.pop("encoder.layer.0.output.dense.weight")
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"encoder\.layer\.0\.output\.dense\.weight"):
        load_embedder(config(tmp_path), quiet)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "t5", "classifier_dropout": 0.0}, "encoder-decoder"),
        ({"hidden_size": "wide"}, "not valid"),
        ({"model_type": "unheard-of"}, "does not know its type"),
        ({"model_type": "unheard-of", "auto_map": {"AutoModel": "code.Model"}}, "Python code"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantised"),
    ],
    ids=str,
)
def test_what_cannot_be_served_is_refused_by_name(
    change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    save(tiny("bert"), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ModelLoadError, match=reason):
        load_embedder(config(tmp_path, task="embed"), quiet)


def test_weights_are_read_in_the_type_that_is_asked_for(tmp_path: Path) -> None:
    save(tiny("bert"), tmp_path)
    assert load_embedder(config(tmp_path), quiet).dtype == torch.float32
    half = load_embedder(config(tmp_path, dtype="bfloat16"), quiet)
    assert half.module.get_input_embeddings().weight.dtype == torch.bfloat16
