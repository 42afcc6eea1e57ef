"""Finds out whether a step can be recorded as a graph, by the operations of torch that it runs.

A graph replays kernels, so nothing in a step may wait for a number that the device computes: neither a shape
nor a branch may depend on such a number. Recording such a step fails in the driver, which does not say what
was wrong, and does not give all memory back. A step that is watched fails earlier, with a message that says
why.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from serve_app.engine.cuda.capture import Step

DEPENDENT: Final = torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape
BY_NUMBERS: Final = torch.ops.aten.index, torch.ops.aten.index_put_, torch.ops.aten.index_put
BOOLEANS: Final = torch.bool, torch.uint8


class NotRecordable(Exception):
    """A step that cannot be a graph, with the reason."""


def watched(step: Step) -> torch.Tensor:
    """Run `step`. Raises NotRecordable if the host must wait for the device in the step."""
    with Watch():  # type: ignore[no-untyped-call]
        return step()


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises NotRecordable at an operation that the host cannot launch without waiting for the device."""

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with self:
            parts = func.decompose(*args, **kwargs)  # of several operations, one of which may be at fault
        if parts is not NotImplemented:
            return parts
        out = self._run(func, args, kwargs)
        name = func.overloadpacket.__name__
        if _depends(func, args, kwargs):
            raise NotRecordable(f"{name} {_place()} needs numbers that the device computes")
        if _copies(func, (args, kwargs, out)):
            raise NotRecordable(f"{name} {_place()} copies between host and device")
        return out

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return func(*args, **kwargs)


def _copies(func: Any, arguments: object) -> bool:
    """Whether a call copies between host and device."""
    if func not in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default):
        return False
    kinds = {each.device.type for each in tree_leaves(arguments) if isinstance(each, torch.Tensor)}
    return len(kinds) > 1 and "cpu" in kinds


def _depends(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the host must know numbers in a call's inputs to determine the result, or its shape."""
    if func.overloadpacket in BY_NUMBERS:  # by numbers of places; booleans become such numbers first
        return any(each is not None and each.dtype in BOOLEANS for each in args[1])
    if func is torch.ops.aten.repeat_interleave.Tensor:
        return kwargs.get("output_size") is None
    return any(tag in func.tags for tag in DEPENDENT)


def _place() -> str:
    """The innermost line of the running program outside of torch and this file."""
    own = str(Path(torch.__file__).parent), __file__
    frames = [each for each in traceback.extract_stack() if not each.filename.startswith(own)]
    return f"in {Path(frames[-1].filename).name}, line {frames[-1].lineno},"
