"""The start of a model: its phases in order, its files read once, and what stops it."""

from __future__ import annotations

import errno
import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from serve_app.config import EngineConfig, ModelConfig
from serve_app.engine.grammar.tokenizer import grammar_tokenizer
from serve_app.engine.kernels import native
from serve_app.engine.kernels.layers import NativeCache
from serve_app.engine.waiting import waiting
from serve_app.models.errors import ModelLoadError
from serve_app.models.loader import load_model
from serve_app.replica import build
from serve_app.replica.build import load, load_engine
from serve_app.text.tokens.tokenizer import Tokenizer

LONG_S = 60.0


def config(folder: Path, **changes: object) -> ModelConfig:
    engine = EngineConfig(max_model_len=128, num_blocks=16, block_size=16)
    return ModelConfig(name="tiny", source=str(folder), device="cpu", engine=engine).model_copy(
        update=changes
    )


def test_every_phase_is_told_in_its_order(folder: Path) -> None:
    lines: list[str] = []
    load(config(folder), lines.append)
    text = "\n".join(lines)
    phases = [
        "preparing the CPU kernels",
        r"loading LlamaForCausalLM, \d+ MiB of weights, in \w+ on cpu",
        "loaded tiny: context window",
        r"packed the weights in \d+\.\d s",
        r"KV cache of .*, in \d+\.\d s",
        r"waited \d+\.\d s for the tokenizer and its grammars",
        r"warmed up in \d+\.\d s",
    ]
    assert re.search(".*".join(f"({phase})" for phase in phases), text, re.DOTALL), text


def test_a_tokenizer_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    whole = Tokenizer.load.__func__  # type: ignore[attr-defined]

    def counted(cls: type[Tokenizer], place: Path, **options: str | None) -> Tokenizer:
        read.append(place)
        return whole(cls, place, **options)  # type: ignore[no-any-return]

    monkeypatch.setattr(Tokenizer, "load", classmethod(counted))
    load(config(folder), lambda _: None)
    assert read == [folder.resolve()]


def test_grammars_have_the_width_of_the_logits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the configuration speaks of another one."""
    widths: list[int] = []

    def seen(tokenizer_json: str, *, vocab_size: int, **others: object) -> object:
        widths.append(vocab_size)
        return grammar_tokenizer(tokenizer_json, vocab_size=vocab_size, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(build, "grammar_tokenizer", seen)
    engine, model = load_engine(config(folder), lambda _: None)
    assert widths == [model.vocab_size] == [engine.vocab_size]
    widths.clear()
    wider = model.vocab_size + 8
    monkeypatch.setattr(build, "load_model", lambda *a, **k: replace(load_model(*a, **k), vocab_size=wider))
    engine, _ = load_engine(config(folder), lambda _: None)
    assert widths == [wider, engine.vocab_size]


def test_a_tokenizer_that_cannot_be_read_is_named(folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelLoadError, match=re.escape(f"the tokenizer in {tmp_path} cannot be used")):
        load(config(tmp_path), lambda _: None)


@pytest.mark.skipif(native() is None, reason="there are no native functions")
def test_a_cache_that_the_system_refuses_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = NativeCache.allocate

    def scarce(num_blocks: int, *others: object, **options: object) -> NativeCache:
        if num_blocks == 16:  # not of a trial at the start
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return whole(num_blocks, *others, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(NativeCache, "allocate", scarce)
    with pytest.raises(ModelLoadError, match=r"Cannot allocate memory.*lower kv_cache_bytes"):
        load(config(folder), lambda _: None)


def test_long_work_says_that_it_goes_on() -> None:
    lines: list[str] = []
    told = threading.Event()

    def progress(line: str) -> None:
        lines.append(line)
        told.set()

    with waiting(progress, "compiling", every_s=0.01):
        assert told.wait(LONG_S)
    assert re.fullmatch(r"compiling: \d+ s so far", lines[0])
    count = len(lines)
    with waiting(progress, "compiling", every_s=LONG_S):
        pass
    assert len(lines) == count
