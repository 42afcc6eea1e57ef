"""Without what only Linux has, every module imports, and a model answers the same on plain torch."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from serve_app.config import EngineConfig, ModelConfig
from serve_app.engine.kernels import SWITCH, build
from serve_app.replica.build import load_engine
from serve_app.replica.grammar import child
from serve_app.types import EngineRequest, SamplingParams
from tests.support.tiny_llama import make_tiny_llama
from tests.support.without_linux import pretend

ROOT: Final = Path(__file__).parents[3]
IMPORTS: Final = """
import importlib, pkgutil
import pytest, ray, torch, transformers  # libraries first: they have their own ways on other systems
from tests.support.without_linux import pretend
pretend(pytest.MonkeyPatch())
import serve_app
for module in pkgutil.walk_packages(serve_app.__path__, "serve_app."):
    if not module.name.endswith(("__main__", ".migrations.env")):  # Alembic alone runs the latter
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as missing:
            if missing.name != "triton":  # which a build of torch without CUDA does not bring
                raise
"""


def answer(folder: Path) -> list[int]:
    """Of a freshly loaded model."""
    config = ModelConfig(
        name="tiny",
        source=str(folder),
        device="cpu",
        engine=EngineConfig(max_model_len=128, num_blocks=16, block_size=16),
    )
    engine, _ = load_engine(config, lambda _: None)
    sampling = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    engine.add(EngineRequest(id="a", token_ids=tuple(range(6, 40)), sampling=sampling))
    tokens: list[int] = []
    while engine.has_work():
        tokens += [token for output in engine.step() for token in output.token_ids]
    return tokens


def test_a_model_answers_the_same_on_plain_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_tiny_llama(tmp_path / "model")
    monkeypatch.setenv(SWITCH, "off")
    expected = answer(folder)
    pretend(monkeypatch)
    assert build.cpu_flags() == frozenset()
    assert answer(folder) == expected
    assert len(expected) == 12


def test_a_grammar_has_limits_of_time_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    set_limits: list[int] = []
    monkeypatch.setattr(child, "_limit", lambda kind, _: set_limits.append(kind))
    child._limit_memory()
    assert set_limits == [resource.RLIMIT_AS]
    pretend(monkeypatch)
    child._limit_memory()
    assert set_limits == [resource.RLIMIT_AS]


@pytest.mark.full
def test_every_module_imports() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
