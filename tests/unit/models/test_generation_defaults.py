"""How a model advises to be sampled from: its file, the operator's word over it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from serve_app.config import ModelConfig
from serve_app.models.errors import ModelLoadError
from serve_app.models.generation_defaults import generation_defaults
from serve_app.types import LEFT_TO_MODEL, SamplingDefaults, SamplingParams

FILE: dict[str, Any] = {
    "do_sample": False,
    "temperature": 0.7,
    "top_p": 0.8,
    "top_k": 20,
    "repetition_penalty": 1.05,
    "max_new_tokens": 2048,
    "eos_token_id": [1, 2],
    "max_length": 20,
    "min_p": None,
}
READ = SamplingDefaults(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05, max_tokens=2048)


def read(folder: Path, file: dict[str, Any] | None, setting: Any = "model") -> SamplingDefaults:
    if file is not None:
        (folder / "generation_config.json").write_text(json.dumps(file))
    return generation_defaults(folder, ModelConfig(name="m", source="x", generation_config=setting))


def test_the_files_values_hold_unless_the_operator_says_otherwise(tmp_path: Path) -> None:
    assert read(tmp_path, None) == SamplingDefaults()
    assert read(tmp_path, FILE) == READ
    assert read(tmp_path, FILE, "none") == SamplingDefaults()
    mixed = read(tmp_path, FILE, {"temperature": 0.2, "top_k": -1, "min_p": 0.1})
    assert mixed == SamplingDefaults(
        temperature=0.2, top_p=0.8, top_k=0, min_p=0.1, repetition_penalty=1.05, max_tokens=2048
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1),
        ("temperature", "hot"),
        ("top_p", 0),
        ("top_k", 1.5),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("max_new_tokens", 0),
    ],
)
def test_a_value_out_of_range_is_refused_by_name_with_a_way_out(
    tmp_path: Path, name: str, value: object
) -> None:
    with pytest.raises(ModelLoadError, match=rf"generation_config\.json: {name} is .*should be") as caught:
        read(tmp_path, {**FILE, name: value})
    assert f"`generation_config: {{{name}: ...}}`" in str(caught.value)
    assert read(tmp_path, {**FILE, name: value}, "none") == SamplingDefaults()
    own = {name: 1}
    assert read(tmp_path, {**FILE, name: value}, own)  # the operator's stands over it


def test_the_setting_takes_nothing_else() -> None:
    for setting in ("auto", {"temprature": 1}, {"temperature": -1}, {"max_new_tokens": 0}):
        with pytest.raises(ValidationError, match="generation_config"):
            ModelConfig(name="m", generation_config=setting)


def test_only_what_was_left_to_the_model_is_filled_in() -> None:
    asked = SamplingParams(temperature=0.0, max_tokens=7)
    assert READ.fill(asked, ()) == asked
    assert READ.fill(asked, ("top_k", "min_p")) == SamplingParams(temperature=0.0, top_k=20, max_tokens=7)
    full = READ.fill(SamplingParams(), LEFT_TO_MODEL)
    assert full == SamplingParams(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05)
