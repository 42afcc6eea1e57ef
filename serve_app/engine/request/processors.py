"""The operator's logits processors, which clients ask for by name.

The settings map a name to `package.module:factory`. The factories are the operator's
own code, loaded when the engine starts; a client sends a name and arguments, never code.
"""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import torch

from serve_app import limits
from serve_app.errors import InvalidField, UnsupportedField
from serve_app.types import ProcessorCall

FIELD: Final = "logits_processors"

log = logging.getLogger(__name__)


class LogitsProcessor(Protocol):
    """Edits the logits of one row. The result may depend only on the arguments, since a sequence may be
    computed twice."""

    def __call__(self, prompt: Sequence[int], output: Sequence[int], logits: torch.Tensor) -> None:
        """Change `logits` [V] float32 in place, for the token after `prompt` and `output`.

        Logits may be set to -inf, never to NaN or +inf. An exception ends only this request.
        """
        ...


Factory = Callable[..., LogitsProcessor]


class ProcessorRegistry:
    """The processors of one engine."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        """Import every factory. Raises ValueError if a processor cannot be found; the message names it."""
        self._factories = {name: _load(name, path) for name, path in paths.items()}

    def check(self, calls: Sequence[ProcessorCall]) -> None:
        """Raise InvalidField for a name that is not registered, or arguments that are not a JSON object."""
        for call in calls:
            _arguments(call)
            if not self._factories:
                raise UnsupportedField(FIELD, "this model has none registered.")
            if call.name not in self._factories:
                known = ", ".join(sorted(self._factories))
                raise InvalidField(FIELD, f"unknown name; this model knows {known}.")
        if len(calls) > limits.MAX_PROCESSORS:
            raise InvalidField(FIELD, f"must hold at most {limits.MAX_PROCESSORS} calls.", joint=" ")

    def make(self, calls: Sequence[ProcessorCall]) -> tuple[LogitsProcessor, ...]:
        """The processors of one request. Raises InvalidField if a factory refuses the client's arguments."""
        return tuple(map(self._make, calls))

    def _make(self, call: ProcessorCall) -> LogitsProcessor:
        try:
            return self._factories[call.name](**_arguments(call))
        except Exception as error:
            log.warning("logits processor %s refused its arguments: %s", call.name, error)
            raise InvalidField(FIELD, f"{call.name} refuses these arguments.") from error


def _arguments(call: ProcessorCall) -> dict[str, Any]:
    if len(call.arguments) > limits.MAX_PROCESSOR_ARGUMENT_CHARS:
        raise InvalidField(
            FIELD, f"arguments must be at most {limits.MAX_PROCESSOR_ARGUMENT_CHARS} characters."
        )
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise InvalidField(FIELD, "arguments must be a JSON object.")
    return arguments


def _load(name: str, path: str) -> Factory:
    module, _, attribute = path.partition(":")
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"logits_processors: {name}: cannot load {path!r}: {error}") from error
    if not callable(factory):
        raise ValueError(f"logits_processors: {name}: {path!r} is not callable")
    return factory  # type: ignore[no-any-return]  # that it makes processors shows when it is called
