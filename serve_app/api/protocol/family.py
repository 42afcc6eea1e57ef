"""Decides which protocol a request uses, before its body is read.

The header `X-API-Dialect` decides, else a prefix of the path (`/mindie/v1/...`), else the
route. `/v1` is shared by two protocols: a setting of the gateway chooses one, and an endpoint can choose
the other for its chats (mindie/shared_with_openai). `/v1/messages` is Anthropic's, and so are
Databricks' paths for Anthropic's protocol. `/infer`, `/generate`, `/generate_stream` and `/` are
MindIE's. `/v2` is Triton's except for MindIE's text routes, which also accept Triton's bodies
(mindie/shared_with_triton). `/v3` is OpenVINO Model Server's; `/serving-endpoints`, `/ai-gateway` and
`/api/2.0` are Databricks'.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from serve_app.errors import InvalidField


class Family(StrEnum):
    """A protocol, by the word that selects it in the header or the path's prefix."""

    ANTHROPIC = "anthropic"
    OPENAI = "openai"
    MINDIE = "mindie"
    DATABRICKS = "databricks"
    OVMS = "ovms"
    TRITON = "triton"


HEADER: Final = "X-API-Dialect"
ANTHROPIC_VERSION: Final = "anthropic-version"  # Anthropic's clients send it, and no others

WORDS: Final = {**{family.value: family for family in Family}, "trtllm": Family.TRITON}

# Only what a protocol owns has aliases; health pages and the like do not.
V1: Final = "/v1/"
V2: Final = "/v2/"
V2_PAGE: Final = "/v2"  # which describes the server
V3: Final = "/v3/"
MANAGEMENT: Final = "/api/2."  # 2.0 is served; a 404 of another version has the same shape
DISCOVERY: Final = "/.well-known/databricks-config"  # Databricks' SDK asks for it without its key; a 404
DATABRICKS: Final = ("/serving-endpoints/", "/ai-gateway/", MANAGEMENT, DISCOVERY)
OWNED: Final = (V1, V2, V3, *DATABRICKS)
ANTHROPIC_BASES: Final = ("/v1", "/serving-endpoints/anthropic/v1", "/ai-gateway/anthropic/v1")
ANTHROPIC: Final = (f"{V1}messages", "/serving-endpoints/anthropic/", "/ai-gateway/anthropic/")
# MindIE's own route of texts, and those of Text Generation Inference, which it also serves.
CONTINUE: Final = ("/infer", "/generate", "/generate_stream", "/")
MINDIE_ENDS: Final = ("/generate", "/generate_stream", "/stopInfer")  # of paths below V2


def split_prefix(path: str) -> tuple[Family | None, str]:
    """The protocol that the path's first part selects, if any, and the path without that part."""
    first, slash, rest = path.removeprefix("/").partition("/")
    family, inner = WORDS.get(first), slash + rest
    if family is not None and path.startswith("/") and (inner.startswith(OWNED) or inner == V2_PAGE):
        return family, inner
    return None, path


def family_of(header: str | None, prefix: Family | None, path: str, v1: Family) -> Family:
    """The protocol of a request to `path` (without its prefix). Raises InvalidField."""
    if header is not None:
        if header not in WORDS:
            raise InvalidField(None, f"the header {HEADER} must be one of: {', '.join(sorted(WORDS))}")
        return WORDS[header]
    if prefix is not None:
        return prefix
    if path.startswith(ANTHROPIC):
        return Family.ANTHROPIC
    if path.startswith(V1):
        return v1
    if path.startswith(DATABRICKS):
        return Family.DATABRICKS
    if path.startswith(V3):
        return Family.OVMS
    if path in CONTINUE or (path.startswith(V2) and path.endswith(MINDIE_ENDS)):
        return Family.MINDIE
    return Family.TRITON if path == V2_PAGE or path.startswith(V2) else Family.OPENAI
