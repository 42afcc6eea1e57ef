"""What MindIE's two bodies have in common: fields with their ranges, and what a model adds to them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated, Any, Final

from serve_app import limits
from serve_app.api.dialects.chat.fields import MAX_TOKEN_ID
from serve_app.api.edge.body import WireModel
from serve_app.api.protocol.fields import Integer, Integers, Number, Texts
from serve_app.errors import InvalidField
from serve_app.types import GenerateRequest, ModelInfo, SamplingParams

MODEL_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,254}[A-Za-z0-9])?")
MAX_ALL_STOP_CHARS: Final = 32_768  # of all stop strings together
MAX_TIMEOUT_S: Final = 65_535
LOWEST_PRIORITY: Final = 5  # and the default; 1 is the highest

# Fields of `SamplingParams` under the same name, with the same default.
_SAME: Final = (
    "temperature",
    "top_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "stop_token_ids",
    "ignore_eos",
    "watermark",
)


class SharedFields(WireModel):
    """Fields of both bodies. None: absent."""

    top_p: Annotated[float | None, Number(0, 1, above=True)] = None
    seed: Annotated[int | None, Integer(1, limits.MAX_SEED)] = None
    stop: Annotated[
        tuple[str, ...] | None, Texts(limits.MAX_STOP_STRINGS, limits.MAX_STOP_CHARS, single=True)
    ] = None
    stop_token_ids: Annotated[
        tuple[int, ...] | None, Integers(limits.MAX_STOP_TOKEN_IDS, 0, MAX_TOKEN_ID)
    ] = None
    priority: Annotated[int | None, Integer(1, LOWEST_PRIORITY)] = None

    def check_stop(self, name: str) -> None:
        """Raises InvalidField, with the field called `name`, for too much in all stop strings together."""
        if sum(map(len, self.stop or ())) > MAX_ALL_STOP_CHARS:
            raise InvalidField(
                name, f"must hold at most {MAX_ALL_STOP_CHARS} characters in all strings together"
            )

    @property
    def engine_priority(self) -> int:
        """The priority as a replica understands it: larger runs earlier."""
        return LOWEST_PRIORITY - (self.priority or LOWEST_PRIORITY)

    def sampling(self, max_tokens: int | None, top_k: int) -> SamplingParams:
        fields: dict[str, Any] = {name: getattr(self, name, None) for name in _SAME}
        given = {name: value for name, value in fields.items() if value is not None}
        return SamplingParams(**given, top_k=top_k, seed=self.seed, max_tokens=max_tokens)


def fit_output(request: GenerateRequest, info: ModelInfo, *, clamp: bool) -> GenerateRequest:
    """The request within the model's limit on output: shortened with `clamp`, else refused above it.

    Raises InvalidField.
    """
    most = info.max_output_tokens or info.context_window
    asked = request.sampling.max_tokens
    if asked is None or asked <= most:
        return request
    if not clamp:
        raise InvalidField("max_tokens", f"must be an integer from 1 to {most}")
    return replace(request, sampling=replace(request.sampling, max_tokens=most))
