"""Prompts, checked before any model gets them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from serve_app.api.guard.guard import Blocked, Check, Judge, Rules
from serve_app.api.guard.values import checked, texts_of
from serve_app.errors import PromptTooLong, UnsupportedField
from serve_app.guardrails.judging import MAX_PIECES, PIECE_CHARS, Inquest, pieces
from serve_app.types import EmbedRequest, GenerateRequest, Prompt

T = TypeVar("T")

OFF_LOOP_CHARS: Final = 16 * 1024  # of a prompt; the rules take some milliseconds for as many
_NO_IDS: Final = "must be text, as the endpoint's input guardrail cannot read token ids"


async def checked_requests(
    requests: Sequence[GenerateRequest], rules: Rules, judge: Judge
) -> list[GenerateRequest]:
    """`requests` after the rules were applied, with personal data masked if the rules say so.

    Raises GuardrailTriggered; UnsupportedField for token ids; Unavailable if the judge gives no verdict.
    """
    found = []
    for request in requests:
        if request.prompt.token_ids is not None:
            raise UnsupportedField("prompt", _NO_IDS)
        size = sum(map(len, _texts(request)))
        passed = await _screened(size, rules, partial(_passed, request, rules))
        await _judged(passed, rules, judge)
        found.append(passed)
    return found


async def checked_inputs(request: EmbedRequest, rules: Rules, judge: Judge) -> EmbedRequest:
    """`request` after the rules were applied. Raises the errors of `checked_requests`."""
    texts = [each for each in request.inputs if isinstance(each, str)]
    if len(texts) != len(request.inputs):
        raise UnsupportedField("input", _NO_IDS)

    def passed() -> EmbedRequest:
        return replace(request, inputs=tuple(rules.filter().whole(text) for text in texts))

    found = await _screened(sum(map(len, texts)), rules, passed)
    for inquest in rules.inquests:
        await _ask(inquest, [str(each) for each in found.inputs], rules, judge)
    return found


async def _screened(size: int, rules: Rules, work: Callable[[], T]) -> T:
    """Run `work` over texts of `size` characters; in a thread if it takes long enough to delay others."""
    try:
        return work() if size < OFF_LOOP_CHARS else await asyncio.to_thread(work)
    except Blocked as found:
        raise rules.triggered(found.check) from None


def _passed(request: GenerateRequest, rules: Rules) -> GenerateRequest:
    if not rules.reads:
        return request
    if request.grammar is not None:  # which the answer will match, so that no mask may stand in it
        rules.filter(masks=False).whole(request.grammar.text)

    def whole(text: str) -> str:
        return rules.filter().whole(text)

    prompt = request.prompt
    templating = replace(prompt.templating, variables=checked(prompt.templating.variables, whole))
    return replace(
        request,
        prompt=Prompt(
            text=None if prompt.text is None else whole(prompt.text),
            messages=None if prompt.messages is None else checked(prompt.messages, whole),
            tools=checked(prompt.tools, whole),
            templating=templating,
            suffix=None if prompt.suffix is None else whole(prompt.suffix),
        ),
    )


def _texts(request: GenerateRequest) -> Iterable[str]:
    prompt = request.prompt
    yield from texts_of([prompt.text or "", prompt.suffix or "", prompt.messages, prompt.tools])
    yield from texts_of(prompt.templating.variables)
    if request.grammar is not None:
        yield request.grammar.text


async def _judged(request: GenerateRequest, rules: Rules, judge: Judge) -> None:
    prompt = request.prompt
    if rules.safety is not None:
        contents = [_content(each) for each in prompt.messages or ()]
        await _ask(rules.safety, [prompt.text or "", prompt.suffix or "", *contents], rules, judge)
    if rules.topics is not None:
        asked = [_content(each) for each in prompt.messages or () if each.get("role") == "user"][-1:]
        await _ask(rules.topics, [prompt.text or "", *asked], rules, judge)


async def _ask(inquest: Inquest, texts: Sequence[str], rules: Rules, judge: Judge) -> None:
    """Raises GuardrailTriggered if a text does not pass, PromptTooLong if `texts` are too long to judge."""
    most = MAX_PIECES * PIECE_CHARS
    texts = [text for text in texts if text.strip()]
    is_long = sum(map(len, texts)) > most  # checked before megabytes are cut into pieces
    asked = [] if is_long else [piece for text in texts for piece in pieces(text)]
    if is_long or len(asked) > MAX_PIECES:
        raise PromptTooLong(
            "prompt", f"must have at most about {most} characters here, as a model judges all of them"
        )
    for piece in asked:
        if not await judge(inquest, piece):
            raise rules.triggered(inquest.check)


def _content(message: dict[str, Any]) -> str:
    return "\n".join(text for key, value in message.items() if key != "role" for text in texts_of(value))


__all__ = ["Check", "checked_inputs", "checked_requests"]
