"""The steps around generation that TensorRT-LLM's backend serves as models: text to tensors, ids to text.

A step consists of questions to the model's own tokenizer and a function that turns the answers into tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serve_app.api.dialects.triton.request.inputs import Input
from serve_app.api.dialects.triton.request.row import unexpected
from serve_app.api.kserve.message import InferRequest, InferResponse
from serve_app.errors import InvalidField
from serve_app.types import ModelInfo, Question, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleStep:
    """A checked request to the model `preprocessing` or `postprocessing`."""

    request: InferRequest
    questions: tuple[Question[Any], ...]
    tell: Callable[[ModelInfo, Sequence[Any]], dict[str, Tensor]]  # raises InvalidField
    names: Mapping[str, str] = field(default_factory=dict)  # the replica's name of a field -> the client's
    num_prompts: int = 1

    def response(self, info: ModelInfo, told: Sequence[Any]) -> InferResponse:
        """The response. `told` has the answers, in the order of the questions. Raises InvalidField."""
        request, found = self.request, self.tell(info, told)
        wanted = found if request.outputs is None else request.outputs
        return InferResponse(
            model=request.model,
            version=info.version or "1",
            id=request.id,
            outputs={name: found[name] for name in wanted if name in found},
        )


def check_names(request: InferRequest, inputs: Mapping[str, Input], outputs: Sequence[str]) -> None:
    """Raises InvalidField for an unknown input or output, and for a required input that is absent."""
    for name in request.inputs:
        if name not in inputs:
            raise unexpected(name, request.model)
    for name, each in inputs.items():
        if each.required and name not in request.inputs:
            raise InvalidField(name, "is required")
    for name in request.outputs or ():
        if name not in outputs:
            raise InvalidField(
                name[:256],
                f"unexpected inference output '{name[:256]}' for model '{request.model[:256]}'",
                joint=None,
            )
