"""The self-check calls every function of the library, and names the one that is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from serve_app.engine.kernels import native, selfcheck
from serve_app.engine.kernels.exports import EXPORTS
from serve_app.engine.kernels.native import Native

NOTHING_COMPUTED = {
    "product_rank",
    "compact_is_fast",
    "time_parts",
    "tasks_taken_over",
    "simulate_preemption",
    "start_touching",
    "end_touching",
}


@pytest.fixture
def loaded() -> Native:
    kernels = native()
    if kernels is None:
        pytest.skip("no native kernels on this machine")
    return kernels


class WithoutOne:
    """The library, but one of its functions does nothing."""

    def __init__(self, library: Any, name: str) -> None:
        self._library, self._name = library, name

    def __getattr__(self, name: str) -> Any:
        return (lambda *_: 0) if name == self._name else getattr(self._library, name)


def test_every_function_has_a_check() -> None:
    assert selfcheck.CHECKS.keys() == EXPORTS.keys()


def test_this_library_is_right(loaded: Native) -> None:
    assert selfcheck.wrong_results(loaded) == []


@pytest.fixture
def _no_stale_memory() -> Iterator[None]:
    """Memory that nothing was written to holds NaN, not what an earlier check left there."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_no_stale_memory")
@pytest.mark.parametrize("name", sorted(EXPORTS.keys() - NOTHING_COMPUTED))
def test_a_function_that_computes_nothing_is_named(
    name: str, loaded: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded, "_library", WithoutOne(loaded._library, name))
    assert name in selfcheck.wrong_results(loaded)


def test_a_product_that_the_processor_does_not_have_is_wrong(
    loaded: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selfcheck, "cpu_flags", lambda: frozenset({"sse2"}))
    expected = ["compact_is_fast"] if loaded.compact else []
    expected += ["product_rank"] if len(loaded.products[torch.bfloat16]) > 1 else []
    assert selfcheck.wrong_results(loaded) == expected  # in the order of its checks
