"""The error renderers of each protocol, before and after the first byte of an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from serve_app.api.dialects.anthropic import errors as anthropic_errors
from serve_app.api.dialects.databricks import errors as databricks_errors
from serve_app.api.dialects.mindie import errors as mindie_errors
from serve_app.api.dialects.openai import errors as openai_errors
from serve_app.api.dialects.ovms import errors as ovms_errors
from serve_app.api.dialects.triton import errors as trtllm_errors
from serve_app.api.protocol.dialect import ErrorReply
from serve_app.api.protocol.family import Family
from serve_app.errors import ServeError

RENDERERS: Final[Mapping[Family, Callable[[ServeError], ErrorReply]]] = MappingProxyType(
    {
        Family.ANTHROPIC: anthropic_errors.render_error,
        Family.OPENAI: openai_errors.render_error,
        Family.MINDIE: mindie_errors.render_error,
        Family.DATABRICKS: databricks_errors.render_error,
        Family.OVMS: ovms_errors.render_error,
        Family.TRITON: trtllm_errors.render_error,
    }
)


def render_error(family: Family, error: ServeError) -> ErrorReply:
    """Status, headers and body of `error` in the form of the protocol `family`."""
    return RENDERERS[family](error)
