"""The native library: built once, privately, checked before use, replaceable by plain torch."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from serve_app.engine import kernels
from serve_app.engine.kernels import build, native
from serve_app.engine.kernels.layers import NativeCache
from serve_app.engine.kernels.quantized import cached_rows
from serve_app.engine.kernels.structs import CACHED, Product
from serve_app.engine.norm import Norm, Pending

pytestmark = pytest.mark.skipif(native() is None, reason="no native kernels on this machine")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "serve_app" / "kernels"


def fake_compiler(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return str(path)


def test_a_library_is_compiled_once_into_a_folder_of_its_owner(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = tmp_path / "calls"
    script = f'''[ "$1" = --version ] && echo v1 && exit
for argument; do last=$argument; done
echo x >> {counter}
echo library > "$last"'''
    monkeypatch.setenv("CXX", fake_compiler(tmp_path / "cxx", script))
    first = kernels.library()
    assert kernels.library() == first
    assert counter.read_text().count("x") == len(list(build.SOURCES.glob("*.cpp"))) + 1
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [p.name for p in folder.iterdir()] == [first.parent.name]
    assert sorted(p.name for p in first.parent.iterdir()) == sorted([first.name, "lock"])


def test_a_library_in_a_read_only_folder_is_used(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an image that cannot be written to; a namespace of its own mounts the folder anew."""
    script = (
        '[ "$1" = --version ] && echo v1 && exit; for argument; do last=$argument; done; echo x > "$last"'
    )
    monkeypatch.setenv("CXX", fake_compiler(tmp_path / "cxx", script))
    path = kernels.library()
    code = "from serve_app.engine import kernels; print(kernels.library())"
    mount = f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}"
    inside = ["unshare", "--mount", "sh", "-c", f"{mount} || exit 77; exec {sys.executable} -c '{code}'"]
    done = subprocess.run(inside, capture_output=True, text=True, timeout=120)
    if done.returncode in (1, 77) and "BuildError" not in done.stderr:
        pytest.skip(f"mounting is not permitted here; run as root: {done.stderr.strip()}")
    assert done.stdout.strip() == str(path), done.stderr


def test_the_script_compiles_with_the_standard_library_alone_what_the_library_is_linked_of(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = tmp_path / "calls"
    script = f'''[ "$1" = --version ] && echo v1 && exit
for argument; do last=$argument; done
echo x >> {counter}
echo object > "$last"'''
    monkeypatch.setenv("CXX", fake_compiler(tmp_path / "cxx", script))
    command = [sys.executable, "-S", build.__file__]  # without installed packages
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stderr
    assert "building the CPU kernels" in said
    sources = {source.stem for source in build.SOURCES.glob("*.cpp")}
    assert {path.stem for path in folder.glob("*/*.o")} == sources
    assert not subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stderr
    kernels.library()  # links
    assert counter.read_text().count("x") == len(sources) + 1
    assert not subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stderr


def test_the_script_says_why_nothing_was_compiled(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", fake_compiler(tmp_path / "cxx", "echo no such header >&2; exit 1"))
    done = subprocess.run([sys.executable, "-S", build.__file__], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "the CPU kernels are not built" in done.stderr


def test_a_folder_that_others_may_enter_is_closed_to_them(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    monkeypatch.setenv("CXX", fake_compiler(tmp_path / "cxx", "exit 1"))
    with pytest.raises(build.BuildError):
        kernels.library()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_failing_compiler_leaves_plain_torch_and_a_warning(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    script = '[ "$1" = --version ] && echo v1 && exit; echo no such header >&2; exit 1'
    monkeypatch.setenv("CXX", fake_compiler(tmp_path / "cxx", script))
    with caplog.at_level(logging.WARNING):
        assert kernels._load.__wrapped__() is None
    assert "no such header" in caplog.text
    assert not list(folder.rglob("*.so"))


def test_no_compiler_leaves_plain_torch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", os.devnull)
    assert kernels._load.__wrapped__() is None


def test_a_library_with_wrong_results_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = native()
    assert loaded is not None
    right = type(loaded).gated
    monkeypatch.setattr(type(loaded), "gated", lambda *a, **o: right(*a, **o) * 1.01)
    assert kernels._load.__wrapped__() is None
    assert "wrong results (gated)" in caplog.text


def test_the_switch_turns_the_kernels_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernels.SWITCH, "off")
    assert native() is None


def test_gates_take_the_whole_range_of_floats() -> None:
    loaded = native()
    assert loaded is not None
    gate = torch.tensor([[-1e30, -200.0, -88.0, -1.0, 0.0, 1.0, 88.0, 200.0, 1e30]])
    got = loaded.gated(torch.cat([gate, torch.ones_like(gate)], dim=1))
    torch.testing.assert_close(got, torch.nn.functional.silu(gate))


def test_rows_shared_between_threads_equal_rows_of_one_thread() -> None:
    loaded = native()
    assert loaded is not None
    torch.manual_seed(0)
    gate_up, weight = torch.randn(300, 1024), torch.randn(512)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 4):
            torch.set_num_threads(count)
            hidden = loaded.gated(gate_up)
            normed = loaded.add_norm(hidden.clone(), Pending(hidden.clone()), Norm(weight, 1e-5))
            results.append((hidden, normed))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, many) for one, many in zip(*results, strict=True))


@pytest.mark.parametrize("dtype", CACHED)
@pytest.mark.parametrize("dim", [24, 32, 64, 96, 128])
def test_a_prompts_heads_and_cache_are_those_of_its_rows_one_by_one(dtype: torch.dtype, dim: int) -> None:
    loaded = native()
    assert loaded is not None
    torch.manual_seed(0)
    rows, heads, kv_heads, block_size = 75, 3, 2, 32
    slots = torch.cat([torch.tensor([2, 90]), torch.arange(5, 5 + rows - 3), torch.tensor([95])])
    qkv, norms = torch.randn(rows, (heads + 2 * kv_heads) * dim), (torch.randn(dim), torch.randn(dim))
    cos, sin = torch.randn(rows, dim // 2), torch.randn(rows, dim // 2)
    results = []
    for pieces in (range(rows), range(0, rows, rows)):
        cache = NativeCache.allocate(3, block_size, kv_heads, dim, dim, dtype, Product.FLOATS)
        turned = qkv.clone()
        for first in pieces:
            part = slice(first, first + rows // len(pieces))
            loaded.rope_and_cache(
                *(turned[part], cos[part], sin[part], norms, 1e-5, cache, slots[part], heads)
            )
        results.append((turned[:, : heads * dim], *cache.pieces))
    assert all(torch.equal(one, many) for one, many in zip(*results, strict=True))


@pytest.mark.parametrize("dims", [(24, 40), (64, 64), (80, 80), (128, 256)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cached_codes_and_scales_are_those_of_plain_torch(dtype: torch.dtype, dims: tuple[int, int]) -> None:
    loaded = native()
    assert loaded is not None
    random = torch.Generator().manual_seed(2)
    rows, kv_heads, size = 70, 3, 32
    key, value = (torch.randn(rows, kv_heads, dim, generator=random) for dim in dims)
    for tensor in (key, value):
        tensor *= torch.logspace(-33, 30, rows, base=10)[:, None, None]  # the first rows are as good as zeros
        tensor[5], tensor[7, 1, 3], tensor[8, 0, -1] = 0.0, float("nan"), float("-inf")
        tensor[9, :, :4] = torch.tensor([127.0, 0.5, -1.5, 2.5])  # ties
        tensor[9, :, 4:] = 0.0
    key, value = key.to(dtype), value.to(dtype)
    slots = torch.arange(11, 11 + rows)
    cache = NativeCache.allocate(3, size, kv_heads, *dims, torch.int8, Product.FLOATS)
    loaded.write_cache(key, value, cache, slots)
    block, offset = slots // size, slots % size
    assert cache.key_scales is not None
    assert cache.value_scales is not None
    assert cache.values is not None
    stored = (
        (key, cache.keys[block, :, :, offset, 0], cache.key_scales[block, :, offset]),
        (value, cache.values[block, :, offset, : dims[1]], cache.value_scales[block, :, offset]),
    )
    for wanted, codes, scales in stored:
        want_codes, want_scales = cached_rows(wanted)
        assert torch.equal(codes, want_codes)
        torch.testing.assert_close(scales, want_scales, atol=0, rtol=0, equal_nan=True)
        assert scales[7, 1].isnan()
        assert scales[8, 0].isnan()
        assert scales.isnan().sum() == 2
        assert not codes[7, 1].any()
    assert cached_rows(key)[0][9, 0, :4].tolist() == [127, 0, -2, 2]


def test_arguments_that_do_not_fit_are_refused_before_the_native_call() -> None:
    loaded = native()
    assert loaded is not None
    packed = loaded.pack_weight(torch.randn(16, 8))
    with pytest.raises(ValueError, match="does not fit"):
        loaded.linear(torch.randn(2, 6), packed, None, 16)
    with pytest.raises(ValueError, match="contiguous"):
        loaded.linear(torch.randn(8, 2).T, packed, None, 16)
