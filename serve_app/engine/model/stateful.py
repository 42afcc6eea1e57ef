"""The bridge from transformers' stateful functions to ours.

A module of transformers calls such a function as a global name of its own file, and transformers has no
registry of them. So we put a function of our own into that file: it computes the states of the active step,
or calls transformers' function if there are no states. Where a class has no such function, its forward is
replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from math import gcd
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from serve_app.engine.exact import VECTOR
from serve_app.engine.model.forward import applied_states, check_takes_positions, takes_positions
from serve_app.engine.state.functions import FUNCTIONS

_OURS = "computed_by_serve_app"  # marks a function that is connected already


def stateful_functions(kind: type[nn.Module]) -> list[str]:
    """The names of the stateful functions in the file of a class of transformers."""
    return [name for name in FUNCTIONS if hasattr(sys.modules[kind.__module__], name)]


def wants_positions(module: nn.Module) -> bool:
    """Whether the forward of `module` takes positions. A model may need none if all its layers have states.

    Raises UnsupportedModel for any other model whose forward takes no positions.
    """
    if stateful_functions(type(module)) and not takes_positions(module):
        return False
    check_takes_positions(module)
    return True


def connect_states(module: nn.Module) -> None:
    """Let the stateful functions in the files of `module` use the states of the active step."""
    for part in module.modules():
        heads = getattr(part, "num_v_heads", getattr(part, "num_heads", None))
        if isinstance(heads, int) and any(isinstance(child, nn.Conv1d) for child in part.children()):
            part.forward = _in_whole_vectors(part.forward, VECTOR // gcd(VECTOR, heads))
    for kind in {type(part) for part in module.modules()}:
        file = sys.modules[kind.__module__]
        for name in stateful_functions(kind):
            found = getattr(file, name)
            place, at = (found, "forward") if isinstance(found, type) else (file, name)
            if not hasattr(own := getattr(place, at), _OURS):
                setattr(place, at, _connected(own, FUNCTIONS[name]))


def _connected(own: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(own)
    def function(*args: Any, **options: Any) -> Any:
        states = applied_states()
        return own(*args, **options) if states is None else ours(states, *args, **options)

    setattr(function, _OURS, True)
    return function


def _in_whole_vectors(forward: Callable[..., torch.Tensor], rows: int) -> Callable[..., torch.Tensor]:
    """The forward of a layer, with its rows padded to a multiple of `rows` on a CPU.

    For one number per head, the layer uses functions of torch whose rounding depends on the number of rows
    (see `engine.exact`). The added rows belong to no sequence.
    """

    @wraps(forward)
    def padded(hidden_states: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        count = hidden_states.shape[1]
        missing = -count % rows if hidden_states.device.type == "cpu" else 0
        if missing:
            hidden_states = functional.pad(hidden_states, (0, 0, 0, missing))
        return forward(hidden_states, *args, **options)[:, :count]

    return padded
