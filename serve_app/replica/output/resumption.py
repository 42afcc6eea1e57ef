"""Continues an answer that another replica began: makes the input for the engine and for the request's state.

The tokens that the client has are read by the same objects as those of a new answer, and the resulting deltas
are not sent. Does not depend on the engine or on weights.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from serve_app.errors import GenerationFailed, Unavailable
from serve_app.replica.output.request_state import RequestState
from serve_app.replica.prompt import is_ranked
from serve_app.types import ChoiceSoFar, EngineRequest, GenerateRequest, Resume

PIECE: Final = 128  # tokens that are read again at once; then other requests get their turn


def check_weights(resume: Resume, weights: str) -> None:
    """Raise Unavailable if the answer was begun with weights other than this replica's `weights`."""
    if not weights or resume.weights != weights:
        raise Unavailable("the answer was begun by another version of the model", retry_after_s=1.0)


def begun_choices(request: GenerateRequest) -> tuple[ChoiceSoFar, ...]:
    """The begun choices for the engine; empty if all of them start over.

    Choices that are delivered whole start over, unless they are finished. Ranked choices and the hypotheses
    of a beam search depend on each other, so they all start over.
    """
    resume = request.resume
    if resume is None or request.beam is not None or is_ranked(request):
        return ()
    if request.stream:
        return resume.choices
    return tuple(choice if choice.finished else ChoiceSoFar() for choice in resume.choices)


def going_on(engine_request: EngineRequest, request: GenerateRequest) -> EngineRequest:
    """The engine's request, including the part of the answer that another engine has generated, if any.

    Raises Unavailable if the other engine's prompt was shortened differently, so that it had another length.
    """
    resume = request.resume
    if resume is None:
        return engine_request
    prompt_tokens = resume.usage.prompt_tokens
    if any(choice.token_ids for choice in resume.choices) and prompt_tokens != len(engine_request.token_ids):
        raise Unavailable("the prompt has another length than where the answer was begun", retry_after_s=1.0)
    return replace(engine_request, begun=begun_choices(request), age_s=resume.age_s)


async def replay(state: RequestState) -> None:
    """Bring the state to the point that the client has reached. Raises GenerationFailed if the client's
    tokens cannot belong to this answer."""
    resume = state.request.resume
    if resume is None:
        return
    begun = begun_choices(state.request)
    state.go_on(resume, begun)
    for index, choice in enumerate(begun):
        for start in range(0, 0 if choice.finished else len(choice.token_ids), PIECE):
            if not state.replay(index, choice.token_ids[start : start + PIECE]):
                raise GenerationFailed("the answer cannot go on: it has ended already")
            await asyncio.sleep(0)
