"""The paths of routes that are common to OpenAI's protocol and the protocols modelled on it."""

from __future__ import annotations

from typing import Final

V1: Final = "/v1"
OVMS_BASES: Final = ("/v3", "/v3/v1")  # OpenVINO Model Server's
BASES: Final = (V1, *OVMS_BASES)  # below each of them every one of these protocols answers
CHAT: Final = "/chat/completions"  # below a base
