"""What MindIE's two bodies have in common: fields with their ranges, and the model's limits."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated, Final

from serve_app import limits
from serve_app.api.dialects.chat.field_types import Stop, StopTokenIds, TopP
from serve_app.api.dialects.chat.sampling import sampling_params
from serve_app.api.edge.body import WireModel
from serve_app.api.protocol.field_doc import doc
from serve_app.api.protocol.fields import Integer, Sets
from serve_app.config import MindieConfig
from serve_app.errors import InvalidField
from serve_app.types import GenerateRequest, ModelInfo, SamplingParams

MODEL_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,254}[A-Za-z0-9])?")
MAX_INPUT: Final = (
    f"a string of 1 to {MindieConfig().max_input_chars} characters (setting `mindie.max_input_chars`)"
)
MAX_ALL_STOP_CHARS: Final = 32_768  # of all stop strings together
MAX_TIMEOUT_S: Final = 65_535
LOWEST_PRIORITY: Final = 5  # and the default; 1 is the highest


class SharedFields(WireModel):
    """Fields of both bodies. None: absent."""

    top_p: TopP = doc(default=1.0)
    seed: Annotated[int | None, Integer(1, limits.MAX_SEED)] = doc("default drawn anew")
    stop: Stop = doc(
        "default none; ends the answer before the match, with the word stop_sequence",
        accepts=f"; {MAX_ALL_STOP_CHARS} characters in all",
    )
    stop_token_ids: Annotated[StopTokenIds, Sets("stop_token_ids")] = doc("default none")
    priority: Annotated[int | None, Integer(1, LOWEST_PRIORITY)] = doc("1 is the highest", default=5)

    def check_stop(self, name: str) -> None:
        """Raises InvalidField, under the name `name`, if all stop strings together are too long."""
        if sum(map(len, self.stop or ())) > MAX_ALL_STOP_CHARS:
            raise InvalidField(
                name, f"must hold at most {MAX_ALL_STOP_CHARS} characters in all strings together"
            )

    @property
    def engine_priority(self) -> int:
        """The priority on a replica's scale, on which larger numbers run earlier."""
        return LOWEST_PRIORITY - (self.priority or LOWEST_PRIORITY)

    def sampling(self, max_tokens: int | None, top_k: int) -> SamplingParams:
        return sampling_params(self, top_k=top_k, seed=self.seed, max_tokens=max_tokens)


def fit_output(request: GenerateRequest, info: ModelInfo, *, clamp: bool) -> GenerateRequest:
    """The request within the model's output limit. With `clamp`, a larger length is reduced, else refused.

    Raises InvalidField.
    """
    most = info.max_output_tokens or info.context_window
    asked = request.sampling.max_tokens
    if asked is None or asked <= most:
        return request
    if not clamp:
        raise InvalidField("max_tokens", f"must be an integer from 1 to {most}")
    return replace(request, sampling=replace(request.sampling, max_tokens=most))
