"""What a CUDA graph is, without a device: the operations of a step, run again on the same memory.

The step's Python does not run again. So a number of the host that a step needs is the one of the recording,
as in a graph; and an operation that the host cannot launch ahead of the device raises NotRecordable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves
from triton.runtime.interpreter import InterpretedFunction

from serve_app.engine.cuda.capture import Step
from serve_app.engine.cuda.watch import Watch


def record(step: Step) -> Step:
    """As `capture.Record`."""
    tape = _Tape()
    launch = InterpretedFunction.run

    def launched(kernel: Any, *args: Any, **named: Any) -> None:
        def again() -> None:
            launch(kernel, *args, **named)

        tape.calls.append(again)
        with _disable_current_modes():
            again()

    with patch.object(InterpretedFunction, "run", launched), tape:
        out = step()

    def replay() -> torch.Tensor:
        for call in tape.calls:
            call()
        return out

    return replay


class _Tape(Watch):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], None]] = []

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = super()._run(func, args, kwargs)
        schema = func._schema
        if schema.is_mutable:
            self.calls.append(lambda: func(*args, **kwargs))
        elif not any(each.alias_info for each in schema.returns):  # else a view: of what is written already

            def again() -> None:
                made = tree_leaves(func(*args, **kwargs))
                for old, new in zip(tree_leaves(out), made, strict=True):
                    if isinstance(old, torch.Tensor):
                        old.copy_(new)

            self.calls.append(again)
        return out
