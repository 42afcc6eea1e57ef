"""Whose a body of `generate` is: Triton and MindIE share the route, and the keys of the body decide."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from serve_app.api.dialects.mindie.generate import Parameters as MindieParameters
from serve_app.api.dialects.triton.request.inputs import ACCEPTED, RENAMED, TEXT_INPUT

_SHARED: Final = frozenset({"id", TEXT_INPUT, "parameters"})  # top-level keys of both protocols
_TRITONS: Final = frozenset((*ACCEPTED, *RENAMED)) - {TEXT_INPUT} - MindieParameters.model_fields.keys()

_KEY: Final = re.compile(rb'"([a-z_]{1,64})"\s*:')


def is_tritons(raw: bytes) -> bool:
    """Whether a body is Triton's and not MindIE's, whose route it shares.

    It is when it has a key that MindIE's never have, at the top or among the parameters. What
    is no JSON object is MindIE's, unless a name that is Triton's alone stands in it like a key.
    """
    try:
        body = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        if not body.keys() <= _SHARED:
            return True
        nested = body.get("parameters")
        return nested is not None and not _TRITONS.isdisjoint(
            msgspec.json.decode(nested, type=dict[str, msgspec.Raw])
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return raw.lstrip()[:1] == b"{" and any(key.decode() in _TRITONS for key in _KEY.findall(raw))
