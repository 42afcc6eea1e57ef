"""A launcher asks Triton once for each kind of launch, and hands no launch to a kernel of another kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from serve_app.engine.attention.triton.launcher import Launcher

pytest.importorskip("triton")

import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZE = 24  # numbers of a tensor
# Constants, in another order than the kernel's, and an option.
NAMED = {"ADDED": 0, "num_warps": 4, "STEP": 8}


def scale(x, out, factor, count, STEP: tl.constexpr, ADDED: tl.constexpr):
    places = tl.program_id(0) * STEP + tl.arange(0, STEP)
    found = tl.load(x + places, mask=places < count, other=0) * factor + ADDED
    tl.store(out + places, found, mask=places < count)


@dataclass(frozen=True)
class Launch:
    by: str
    programs: tuple[int, ...]
    args: tuple[Any, ...]
    named: dict[str, Any] = field(default_factory=dict)


class Noted(JITFunction):
    """What Triton makes of `scale`, but launches are noted. Each by Triton gives another compiled kernel."""

    def __init__(self) -> None:
        super().__init__(scale, do_not_specialize=["count"])
        self.launches: list[Launch] = []

    def run(self, *args: Any, grid: Any, warmup: bool, **named: Any) -> Compiled:
        self.launches.append(Launch("Triton", grid, args, named))
        return Compiled(f"compiled by launch {len(self.launches)}", self.launches)

    @property
    def launched_by(self) -> list[str]:
        return [launch.by for launch in self.launches]


@dataclass(frozen=True)
class Compiled:
    name: str
    launches: list[Launch]

    def __getitem__(self, programs: tuple[int, ...]) -> Any:
        return lambda *args: self.launches.append(Launch(self.name, programs, args))


class OnDevice(torch.Tensor):
    """Says that it is on a device. Its memory is the host's, and begins at a multiple of 64 bytes."""

    device = torch.device("cuda", 0)


class OnAnother(OnDevice):
    device = torch.device("cuda", 1)


def launch(
    launcher: Launcher,
    *,
    programs: tuple[int, ...] = (3,),
    dtype: torch.dtype = torch.int32,
    device: type[torch.Tensor] = OnDevice,
    skipped: tuple[int, int] = (0, 0),  # numbers before the tensors
    factor: int = 32,
    count: int = SIZE,
    **named: Any,
) -> tuple[Any, ...]:
    """Returns the arguments."""
    x, out = (torch.zeros(SIZE + skip, dtype=dtype)[skip:].as_subclass(device) for skip in skipped)
    launcher(programs, x, out, factor, count, **NAMED | named)
    return x, out, factor, count


def test_the_second_launch_of_a_kind_goes_to_the_compiled_kernel_with_the_constants_behind() -> None:
    launcher = Launcher(kernel := Noted())
    for _ in range(3):
        args = launch(launcher, ADDED=5)
    assert kernel.launched_by == ["Triton", "compiled by launch 1", "compiled by launch 1"]
    first, _, last = kernel.launches
    assert first.named == NAMED | {"ADDED": 5}
    assert [id(arg) for arg in last.args[:4]] == [id(arg) for arg in args]
    assert last.args[4:] == (8, 5)  # as the kernel names them, without the option


@pytest.mark.parametrize(
    "changed",
    [
        {"dtype": torch.int64},
        {"factor": 16},
        {"factor": 1},
        {"ADDED": 1},
        {"STEP": 16},
        {"num_warps": 8},
        {"num_stages": 2},
        {"device": OnAnother},
    ],
    ids=str,
)
def test_a_launch_of_another_kind_goes_to_triton_and_both_kinds_are_kept(changed: dict[str, Any]) -> None:
    launcher = Launcher(kernel := Noted())
    for kind in ({}, changed, {}, changed):
        launch(launcher, **kind)
    assert kernel.launched_by == ["Triton", "Triton", "compiled by launch 1", "compiled by launch 2"]


@pytest.mark.parametrize("skipped", [(1, 0), (0, 1), (2, 2)], ids=str)
def test_a_pointer_that_is_not_aligned_always_goes_to_triton(skipped: tuple[int, int]) -> None:
    launcher = Launcher(kernel := Noted())
    for kind in ((0, 0), skipped, skipped, (0, 0)):
        launch(launcher, skipped=kind)
    assert kernel.launched_by == ["Triton", "Triton", "Triton", "compiled by launch 1"]


@pytest.mark.parametrize("changed", [{"count": 16}, {"count": 1}, {"skipped": (4, 8)}], ids=str)
def test_what_triton_does_not_compile_in_makes_no_other_kind(changed: dict[str, Any]) -> None:
    launcher = Launcher(kernel := Noted())
    launch(launcher)
    args = launch(launcher, **changed)
    assert kernel.launched_by == ["Triton", "compiled by launch 1"]
    assert [id(arg) for arg in kernel.launches[1].args[:4]] == [id(arg) for arg in args]


@pytest.mark.parametrize("programs", [(2,), (2, 3), (2, 3, 4)], ids=str)
def test_a_compiled_kernel_gets_all_three_dimensions(programs: tuple[int, ...]) -> None:
    launcher = Launcher(kernel := Noted())
    for _ in range(2):
        launch(launcher, programs=programs)
    assert kernel.launches[0].programs == programs
    assert kernel.launches[1].programs[:3] == (*programs, 1, 1)[:3]


def test_on_the_cpu_every_launch_goes_to_the_kernel_itself() -> None:
    launcher = Launcher(kernel := Noted())
    for _ in range(3):
        launch(launcher, device=torch.Tensor)
    assert kernel.launched_by == ["Triton"] * 3


def test_launches_of_mixed_kinds_compute_what_each_asks_for() -> None:
    """By Triton itself: in its interpreter, or with kernels that it compiles."""
    launcher = Launcher(triton.jit(do_not_specialize=["count"])(scale))
    kinds = [
        (dtype, skip, factor, count, added)
        for dtype in (torch.int32, torch.int64)
        for skip in (0, 1)
        for factor in (1, 3, 16)
        for count, added in ((SIZE, 0), (7, 5))
    ]
    for dtype, skip, factor, count, added in kinds * 2:
        x = torch.arange(skip + SIZE, dtype=dtype, device=DEVICE)[skip:]
        out = torch.full_like(x, -1)
        launcher((3,), x, out, factor, count, STEP=8, ADDED=added)
        assert torch.equal(out[:count], x[:count] * factor + added)
        assert (out[count:] == -1).all()
