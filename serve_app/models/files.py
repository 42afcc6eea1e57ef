"""The files in a model's folder: whether they can be read, and which end tokens they name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from serve_app.models.errors import ModelLoadError

# Settings of config.json that say how weights are quantised; the second is of old compressed-tensors.
QUANTISATION: Final = ("quantization_config", "compression_config")
MODELOPT: Final = "hf_quant_config.json"
WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
ELSEWHERE: Final = "tensors.json"  # an index of tensors in files of another format
_SHARD: Final = re.compile(r".+-\d{5}-of-\d{5}\.safetensors")
# Formats that can run code when they are opened, or that transformers reads only through another library.
UNSAFE_SUFFIXES: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack")


def check_files(folder: Path) -> None:
    """Raise ModelLoadError unless `folder` has a configuration and complete safetensors weights."""
    others = sorted(path.name for path in folder.iterdir() if path.suffix in UNSAFE_SUFFIXES)
    if (folder / ELSEWHERE).is_file():
        return
    has_weights = any(folder.glob("*.safetensors"))
    if not (folder / "config.json").is_file():
        if (folder / "adapter_config.json").is_file():
            raise ModelLoadError(
                f"{folder} holds a LoRA adapter: set `source` to the model that it adapts, and name this "
                "folder in `adapters`"
            )
        raise ModelLoadError(
            f"{folder} has no config.json: it does not hold a transformers model; check `source`, or fetch "
            "the model again"
        )
    if has_weights:
        _check_shards(folder)
        return
    found = (
        f"only {', '.join(others[:4])}, which may run code when opened or are not supported"
        if others
        else "none"
    )
    raise ModelLoadError(
        f"{folder} has no .safetensors weights ({found}); convert it with save_pretrained on a machine you "
        "trust with it, or choose a safetensors checkpoint"
    )


def _check_shards(folder: Path) -> None:
    """Raise ModelLoadError unless the weights have the names that transformers looks for, and none is
    missing."""
    present = {path.name for path in folder.glob("*.safetensors")}
    if WEIGHTS in present:
        return
    if not (folder / INDEX).is_file():
        if any(_SHARD.fullmatch(name) for name in present):
            raise ModelLoadError(
                f"{folder} has shards of weights but no {INDEX}, which says what is in them; fetch the model "
                "again, with that file"
            )
        raise ModelLoadError(
            f"{folder} has neither {WEIGHTS} nor {INDEX}, but {', '.join(sorted(present)[:4])}; choose the "
            "weights in transformers' layout, or rename a single file that is in it"
        )
    wanted = read_json(folder / INDEX).get("weight_map")
    if not isinstance(wanted, dict) or not wanted:
        raise ModelLoadError(f"{folder / INDEX} has no weight_map: fetch the model again")
    if lacking := sorted({str(name) for name in wanted.values()} - present):
        raise ModelLoadError(
            f"{folder} lacks {len(lacking)} of the files that {INDEX} lists, such as {lacking[0]}; the "
            "download is incomplete, fetch the model again"
        )


def read_json(path: Path) -> dict[str, Any]:
    """The object in `path`, empty if there is no such file; raises ModelLoadError if the file is not JSON."""
    value = _parse_json(path)
    return value if isinstance(value, dict) else {}


def read_settings(folder: Path) -> dict[str, Any]:
    """config.json. If it does not say how weights are quantised, ModelOpt's own file beside it may."""
    found = read_json(folder / "config.json")
    beside = read_json(folder / MODELOPT).get("quantization")
    if isinstance(beside, dict) and beside.get("quant_algo") and quantisation(found) is None:
        found[QUANTISATION[0]] = {"quant_method": "modelopt", **beside}
    return found


def quantisation(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """How a checkpoint with this config.json is quantised; None if it is not."""
    for owner in (config, config.get("text_config") or {}):
        for key in QUANTISATION:
            if owner.get(key):
                return dict(owner[key])
    return None


def read_json_list(path: Path) -> list[dict[str, Any]]:
    """The objects of the list in `path`, read like `read_json`; empty if there is no such list."""
    value = _parse_json(path)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _parse_json(path: Path) -> object:
    if not path.is_file():
        return None
    try:
        value: object = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ModelLoadError(f"{path} is not JSON: the folder is damaged, fetch the model again") from error
    return value


def eos_token_ids(folder: Path, vocab_size: int) -> tuple[int, ...]:
    """Ids that end a sequence, in order: from generation_config.json, from config.json, and the tokenizer's
    own."""
    config = read_json(folder / "config.json")
    candidates: list[object] = []
    for owner in (read_json(folder / "generation_config.json"), config, config.get("text_config") or {}):
        value = owner.get("eos_token_id")
        candidates += value if isinstance(value, list) else [value]
    candidates.append(_tokenizer_eos(folder))
    ids = [i for i in candidates if isinstance(i, int) and 0 <= i < vocab_size]
    return tuple(dict.fromkeys(ids))


def _tokenizer_eos(folder: Path) -> int | None:
    declared = read_json(folder / "tokenizer_config.json").get("eos_token")
    token = declared.get("content") if isinstance(declared, dict) else declared
    if token is None:
        return None
    tokenizer = read_json(folder / "tokenizer.json")
    for added in tokenizer.get("added_tokens", ()):
        if added.get("content") == token:
            return int(added["id"])
    vocabulary = tokenizer.get("model", {}).get("vocab", {})
    found = vocabulary.get(token) if isinstance(vocabulary, dict) else None
    return found if isinstance(found, int) else None
