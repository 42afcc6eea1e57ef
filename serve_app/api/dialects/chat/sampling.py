"""Sampling parameters, read from the fields of a body."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from serve_app.api.edge.body import WireModel
from serve_app.types import SamplingParams

# Under these names, bodies have texts and sampling parameters have token ids.
_OF_TEXTS: Final = {"bad_words", "stop_sequences"}
_NAMES: Final = frozenset(field.name for field in fields(SamplingParams)) - _OF_TEXTS


def sampling_params(body: WireModel, **others: Any) -> SamplingParams:
    """The sampling parameters, from the body's fields of the same names.

    `others` take precedence.
    """
    given = {name: value for name, value in body.__dict__.items() if name in _NAMES and value is not None}
    return SamplingParams(**{**given, **others})
