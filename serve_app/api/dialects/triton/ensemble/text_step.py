"""Requests to the models `preprocessing` and `postprocessing`, over any transport.

The requests are questions to the tokenizer, which are served in the same way as /tokenize and /detokenize.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, Final

from starlette.types import Scope

from serve_app.api.admission.estimates import prompt_tokens
from serve_app.api.dialects.triton.ensemble.postprocessing import INPUTS as IDS
from serve_app.api.dialects.triton.ensemble.postprocessing import parse_postprocessing
from serve_app.api.dialects.triton.ensemble.preprocessing import INPUTS as QUERIES
from serve_app.api.dialects.triton.ensemble.preprocessing import parse_preprocessing
from serve_app.api.dialects.triton.ensemble.step import EnsembleStep
from serve_app.api.dialects.triton.request.inputs import Input
from serve_app.api.dialects.triton.role import Role
from serve_app.api.exchange.ask import asked_of
from serve_app.api.kserve.message import InferRequest, InferResponse
from serve_app.api.services import Services
from serve_app.endpoints.endpoint import ServedEntity
from serve_app.types import DetokenizeRequest, Question, TokenizeRequest, Tokens

PARSERS: Final[Mapping[Role, Callable[[InferRequest], EnsembleStep]]] = MappingProxyType(
    {Role.PREPROCESSING: parse_preprocessing, Role.POSTPROCESSING: parse_postprocessing}
)
INPUTS: Final[Mapping[Role, Mapping[str, Input]]] = MappingProxyType(
    {Role.PREPROCESSING: QUERIES, Role.POSTPROCESSING: IDS}
)


@asynccontextmanager
async def answer_step(
    step: EnsembleStep, endpoint: str, scope: Scope, services: Services
) -> AsyncIterator[tuple[ServedEntity, InferResponse]]:
    """The model that answered, and its response. Both are recorded at the block's end. Raises ServeError."""
    asked = asked_of(
        services,
        scope,
        endpoint,
        step.questions,
        estimate=lambda: sum(map(_estimate, step.questions)),
        tokens=lambda told: sum(map(_tokens, step.questions, told)),
        version=step.request.version,
    )
    async with asked as (entity, info, told, _):
        yield entity, step.response(info, told)


def _estimate(question: Question[Any]) -> int:
    """An estimate of the number of tokens in a question."""
    if isinstance(question, TokenizeRequest):
        return prompt_tokens(question.prompt)
    return len(question.token_ids) if isinstance(question, DetokenizeRequest) else 0


def _tokens(question: Question[Any], reply: Any) -> int:
    """The number of tokens in a question, as the reply states it."""
    return len(reply.token_ids) if isinstance(reply, Tokens) else _estimate(question)
