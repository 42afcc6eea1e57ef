"""A folder in transformers' layout that describes a GGUF file: settings, tokenizer, and where tensors lie.

The folder is in the cache of the hub, and has the digest of its contents as its name. So it is never stale,
and several replicas may write it at the same time.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from huggingface_hub import constants

from serve_app.models.errors import ModelLoadError
from serve_app.models.files import ELSEWHERE
from serve_app.models.gguf.delta_layers import drafting_layers
from serve_app.models.gguf.facts import Facts
from serve_app.models.gguf.families import config_of, family_of
from serve_app.models.gguf.header import read_header
from serve_app.models.gguf.tensors import renamed
from serve_app.models.gguf.types import BLOCKS
from serve_app.models.stored import StoredTensor, index_of

_TEXTS: Final = (".json", ".jinja", ".model", ".txt")
_TOKENIZER: Final = "tokenizer.json"
_NORMAL: Final = 1  # the type of a token
_NOT_BESIDE: Final = ("config.json", ELSEWHERE)  # files that only the file itself decides


def describe(files: Sequence[Path]) -> tuple[dict[str, Any], list[StoredTensor], Facts]:
    """What config.json would say of the model in `files`, and its tensors; reads only headers.

    Raises ModelLoadError, with the reason, for files that are damaged or not read here.
    """
    try:
        facts = Facts([read_header(path) for path in files])
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{error}; fetch the file again, or choose another one") from error
    family = family_of(facts)
    try:
        config = config_of(facts, family)
        tensors = renamed(facts, family, config)
    except (TypeError, ValueError, IndexError) as error:
        raise facts.error(f"a setting of it is not valid ({error}); fetch the file again") from error
    kinds = {each.dtype: None for each in tensors if each.dtype in BLOCKS}
    plain = {each.dtype for each in tensors if len(each.shape) > 1} or {"F32"}
    config["quantization_config"] = {"quant_method": "gguf", "types": sorted(kinds) or sorted(plain)}
    config["dtype"] = "float32" if plain == {"F32"} else "float16" if plain == {"F16", "F32"} else "bfloat16"
    return config, tensors, facts


def folder_of(files: Sequence[Path], progress: Callable[[str], None]) -> Path:
    """The folder that describes the model in `files`, in their order.

    A tokenizer.json beside the first file is used instead of the file's own tokenizer. Raises ModelLoadError
    as `describe`, and if the folder cannot be written.
    """
    config, tensors, facts = describe(files)
    if drafting := drafting_layers(facts):
        layers = "1 layer that only drafts is" if drafting == 1 else f"{drafting} layers that only draft are"
        progress(f"{layers} not used")
    beside = _beside(files[0].parent)
    if _TOKENIZER in beside:
        _check_beside(files[0].parent / _TOKENIZER, facts)
        progress(f"the tokenizer is that of {files[0].parent / _TOKENIZER}")
        contents = beside
    else:
        from serve_app.models.gguf.tokenizer import tokenizer_files

        contents = {
            name: each.encode() if isinstance(each, str) else _json(each)
            for name, each in tokenizer_files(facts.path, facts.settings, facts.architecture).items()
        }
    contents = {**contents, "config.json": _json(config), ELSEWHERE: _json(index_of(tensors))}
    root = Path(constants.HF_HOME) / "serve-app" / "gguf"
    try:
        return _written(root, contents)
    except OSError as error:
        raise ModelLoadError(
            f"{root} cannot be written ({error.strerror}), where the settings and the tokenizer of "
            f"{files[0].name} would be kept; set HF_HOME to a folder that can"
        ) from error


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _beside(folder: Path) -> dict[str, bytes]:
    """The texts in the folder of a file."""
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.suffix in _TEXTS and path.name not in _NOT_BESIDE and path.is_file()
    }


def _check_beside(path: Path, facts: Facts) -> None:
    """Raise ModelLoadError if a tokenizer.json has other tokens than the file says."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ModelLoadError(f"{path} cannot be read by the tokenizers library: {error}") from error
    tokens = facts.settings.get("tokenizer.ggml.tokens", ())
    types = facts.settings.get("tokenizer.ggml.token_type", [_NORMAL] * len(tokens))
    for number, (token, kind) in enumerate(zip(tokens, types, strict=False)):
        if kind == _NORMAL and tokenizer.token_to_id(token) != number:
            raise ModelLoadError(
                f"{path} beside {facts.path.name} is of another vocabulary: it has {token!r} as "
                f"{tokenizer.token_to_id(token)}, not {number}; take it away, or put the model's own there"
            )


def _written(root: Path, contents: Mapping[str, bytes]) -> Path:
    digest = blake2b(digest_size=16)
    for name, text in sorted(contents.items()):
        digest.update(blake2b(name.encode()).digest() + blake2b(text).digest())
    folder = root / digest.hexdigest()
    if folder.is_dir():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=root))
    try:
        for name, text in contents.items():
            (made / name).write_bytes(text)
        made.chmod(0o755)
        made.rename(folder)
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        if not folder.is_dir():  # written by another process
            raise
    return folder
