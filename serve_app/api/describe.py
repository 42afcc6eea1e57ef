"""The OpenAPI document of this gateway: all protocols, and general facts about the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final

from serve_app.api.dialects.anthropic import routes as anthropic
from serve_app.api.dialects.databricks import routes as databricks
from serve_app.api.dialects.extensions import routes as extensions
from serve_app.api.dialects.mindie import routes as mindie
from serve_app.api.dialects.openai import routes as openai
from serve_app.api.dialects.ovms import routes as ovms
from serve_app.api.dialects.triton import routes as triton
from serve_app.api.management.operation import TAG as MANAGEMENT
from serve_app.api.openapi import routes as docs
from serve_app.api.openapi.document import About, document
from serve_app.api.openapi.operation import Errors
from serve_app.api.pages import routes as pages
from serve_app.api.protocol.family import HEADER, WORDS, Family
from serve_app.api.route import Path
from serve_app.config import GatewayConfig

_PREFIXES: Final = ", ".join(f"`/{word}`" for word in sorted(WORDS))
_TEXT: Final = f"""\
A self-hosted foundation-model server. Several protocols ask the same models.

The first rule that applies decides which protocol a request speaks: the header `{HEADER}`, a prefix
of the path ({_PREFIXES}) before the routes of protocols, else the path itself. Everywhere `null` means that
a field is absent, a string is never a number, and 3.0 is an integer.

A stream is a series of server-sent events, each with JSON as its data.
"""

_TAGS: Final = {
    openai.TAG: "OpenAI's chat, completions and embeddings, with vLLM's fields beside OpenAI's.",
    anthropic.TAG: "Anthropic's messages.",
    databricks.TAG: "Foundation Model APIs of Databricks.",
    mindie.TAG: "Chat and texts of MindIE.",
    ovms.TAG: "Chat, completions, embeddings and rerank of OpenVINO Model Server.",
    triton.TAG: "TensorRT-LLM behind Triton: tensors over KServe's protocol, version 2.",
    MANAGEMENT: "Endpoints at run time, in the shape of Databricks' API.",
    extensions.TAG: "What can be asked of a model besides answers.",
    pages.TAG: "The gateway and its models.",
    docs.TAG: "This document, and the page that shows it.",
}


def describe(routes: Sequence[Path], config: GatewayConfig) -> dict[str, Any]:
    """The document of a gateway with these settings."""
    errors: Mapping[Family, Errors] = {
        Family.ANTHROPIC: anthropic.ERRORS,
        Family.OPENAI: openai.ERRORS,
        Family.DATABRICKS: databricks.ERRORS,
        Family.MINDIE: mindie.ERRORS,
        Family.OVMS: ovms.errors(config.ovms),
        Family.TRITON: triton.ERRORS,
    }
    about = About("serve-app", version("serve-app"), _TEXT, _TAGS)
    return document(routes, about, errors, Family(config.v1_dialect))
