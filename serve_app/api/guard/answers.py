"""Answers, checked on their way to the client: the deltas of one call, streamed or not.

Text is held back until no rule can still match it. The other parts of a delta are passed on at
once, so that a protocol with one event per token keeps its events. Independent of protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from msgspec import structs

from serve_app.api.guard.guard import Blocked, Judge, Rules, TextFilter
from serve_app.api.guard.values import checked_arguments
from serve_app.api.protocol.dialect import Call, PromptDelta
from serve_app.errors import GuardrailTriggered, UnsupportedField
from serve_app.guardrails.judging import PIECE_CHARS, piece_end
from serve_app.types import (
    FinishReason,
    GenerateRequest,
    Overflow,
    TokenDelta,
    ToolCallDelta,
    ToolMode,
    Usage,
)

# Of a schema: what a text with a mask in it may not match.
_FORMS: Final = frozenset({"pattern", "format", "enum", "const", "minLength", "maxLength"})


class PromptStream(Protocol):
    """The deltas of one call. See `exchange.call_stream`."""

    @property
    def usage(self) -> Usage: ...

    @property
    def migrations(self) -> int: ...

    @property
    def clamped(self) -> int | None: ...

    async def get(self) -> list[PromptDelta]: ...

    def stop(self) -> None: ...

    def cut(self) -> list[PromptDelta]: ...

    def close(self) -> None: ...


def check_can_be_guarded(call: Call, requests: Sequence[GenerateRequest]) -> None:
    """Raises UnsupportedField for fields that would show the answer in a form that the rules cannot check."""
    if call.shows_ids is not None:
        raise UnsupportedField(call.shows_ids, _refusal("token ids"))
    for request in requests:
        for param, is_set, what in (
            ("logprobs", request.logprobs is not None, "log-probabilities"),
            ("prompt_logprobs", request.prompt_logprobs is not None, "log-probabilities"),
            ("context_logits", request.context_logits, "logits"),
            ("generation_logits", request.generation_logits, "logits"),
            ("echo", request.echo, "the prompt"),
        ):
            if is_set:
                raise UnsupportedField(param, _refusal(what))


def _refusal(what: str) -> str:
    return f"shows {what}, which the endpoint's output guardrail cannot check"


class GuardedStream:
    """A stream that delivers only checked text."""

    def __init__(
        self,
        source: PromptStream,
        call: Call,
        requests: Sequence[GenerateRequest],
        rules: Rules,
        judge: Judge,
        triggered: Callable[[str], None],
    ) -> None:
        """`triggered` is called with the name of the check that a choice fails."""
        self._source = source
        self._ends_choice = call.tells_filtered
        self._rules = rules
        self._judge = judge
        self._triggered = triggered
        self._choices = {
            (prompt, index): _GuardedChoice(rules, judge, request)
            for prompt, request in enumerate(requests)
            for index in range(request.n)
        }
        self._found: list[PromptDelta] = []  # checked, and not read yet
        self._may_cut = all(request.overflow is Overflow.TRUNCATE for request in requests)

    @property
    def usage(self) -> Usage:
        return self._source.usage

    @property
    def migrations(self) -> int:
        return self._source.migrations

    @property
    def clamped(self) -> int | None:
        return self._source.clamped

    async def first(self, deltas: list[PromptDelta]) -> list[PromptDelta]:
        """All deltas up to the first visible delta, so that an early finding becomes a proper error.

        `deltas` were already read from the stream.
        """
        while deltas:
            await self._pass(deltas)
            if any(_is_seen(delta) for _, delta in self._found):
                break
            deltas = await self._source.get()
        return self._taken()

    async def get(self) -> list[PromptDelta]:
        """As `CallStream.get`. Raises GuardrailTriggered too."""
        while self._choices and (deltas := await self._source.get()):
            await self._pass(deltas)
            if self._found:
                break
        return self._taken()

    def stop(self) -> None:
        self._source.stop()

    def cut(self) -> list[PromptDelta]:
        """As `CallStream.cut`, but without text that the model has not judged yet.

        The text that passed while another choice was being judged comes first.
        """
        if not self._may_cut:
            return []
        ends = {(prompt, delta.index): delta for prompt, delta in self._source.cut()}
        found = self._taken()
        for key, choice in self._choices.items():
            # The source has ended a choice whose end is being judged.
            end = ends.get(key) or choice.end_of_last()
            if end is not None:
                found.append((key[0], choice.cut(end)))
        return found

    def close(self) -> None:
        self._source.close()

    def _taken(self) -> list[PromptDelta]:
        found, self._found = self._found, []
        return found

    async def _pass(self, deltas: list[PromptDelta]) -> None:
        """Check `deltas`. After a cancellation, `_found` contains the deltas that had passed."""
        for prompt, delta in deltas:
            choice = self._choices.get((prompt, delta.index))
            if choice is None:  # a guardrail has ended it
                continue
            try:
                passed = await choice.pass_on(delta)
            except Blocked as blocked:
                self._triggered(blocked.check)
                if not self._ends_choice:
                    raise self._rules.triggered(blocked.check) from None
                passed = _filtered(delta)
            if passed.finish is not None:
                del self._choices[prompt, delta.index]
            self._found.append((prompt, passed))
        if not self._choices:
            self._source.close()  # guardrails ended all choices: stop their models


class _GuardedChoice:
    """One choice: its text, its thoughts and its tool calls."""

    def __init__(self, rules: Rules, judge: Judge, request: GenerateRequest) -> None:
        """Under a grammar a mask would break the answer's form, so personal data is refused."""
        self._rules = rules
        grammar = request.grammar
        self._masks = grammar is None
        self._shows_stop = request.include_stop
        text = rules.filter(masks=self._masks, is_json=grammar is not None and grammar.is_json)
        self._text = _GuardedText(text, rules, judge)
        self._reasoning = _GuardedText(rules.filter(masks=self._masks), rules, judge)
        self._formed = _tools_with_a_form(request)
        self._calls: dict[int, ToolCallDelta] = {}  # sent whole, at the end
        self._judge = judge
        self._last: TokenDelta | None = None  # the newest that came

    async def pass_on(self, delta: TokenDelta) -> TokenDelta:
        """`delta`, reduced to the parts that may be sent now. Raises Blocked."""
        self._last = delta
        is_end = delta.finish is not None
        reasoning = await self._reasoning.push(delta.reasoning) if delta.reasoning else ""
        if is_end or delta.text:  # thoughts are complete before the answer begins
            reasoning += await self._reasoning.end()
        text = await self._text.push(delta.text) if delta.text else ""
        for call in delta.tool_calls:
            self._note(call)
        calls: tuple[ToolCallDelta, ...] = ()
        if is_end:
            text += await self._text.end(self._cut_at(delta))
            calls = tuple([await self._passed_call(call) for call in self._calls.values()])
        return structs.replace(delta, text=text, reasoning=reasoning, tool_calls=calls)

    def end_of_last(self) -> TokenDelta | None:
        """An end for the choice, in place of an end that arrived but was not judged; None: no end arrived."""
        if self._last is None or self._last.finish is None:
            return None
        unjudged = {"text": "", "reasoning": "", "tool_calls": (), "stop": None}
        return structs.replace(self._last, finish=FinishReason.LENGTH, **unjudged)

    def cut(self, delta: TokenDelta) -> TokenDelta:
        """`delta`, which ends the choice, with the held-back text that needs no judging model."""
        try:
            return structs.replace(delta, reasoning=self._reasoning.cut(), text=self._text.cut())
        except Blocked:
            return delta

    def _cut_at(self, delta: TokenDelta) -> str | None:
        """The part of the stop string that is not in the text; None: no stop string ended it."""
        if not isinstance(delta.stop, str):
            return None
        return "" if self._shows_stop else delta.stop

    def _note(self, call: ToolCallDelta) -> None:
        before = self._calls.get(call.index)
        arguments = (before.arguments if before is not None else "") + call.arguments
        self._calls[call.index] = replace(before or call, arguments=arguments)

    async def _passed_call(self, call: ToolCallDelta) -> ToolCallDelta:
        masks = self._masks and call.name not in self._formed
        arguments = checked_arguments(call.arguments, self._rules, masks=masks)
        for inquest in self._rules.inquests:
            if arguments.strip() and not await self._judge(inquest, arguments):
                raise Blocked(inquest.check)
        return replace(call, arguments=arguments)


class _GuardedText:
    """One text, checked by the rules and then by the judging model."""

    def __init__(self, filter: TextFilter, rules: Rules, judge: Judge) -> None:
        self._filter = filter
        self._inquests = rules.inquests
        self._judge = judge
        self._last = ""  # piece that was judged
        self._piece = ""  # that is not judged yet

    async def push(self, text: str) -> str:
        """The text that may be sent now. Raises Blocked."""
        return await self._judged(self._filter.push(text), is_end=False)

    async def end(self, stop: str | None = None) -> str:
        """The rest of the text; another text may follow. `stop` is checked too, but not sent. Raises
        Blocked."""
        return await self._judged(self._filter.end(stop), is_end=True)

    def cut(self) -> str:
        """The rest of the text, unless a model would have to judge it. Raises Blocked."""
        return "" if self._inquests else self._filter.end()

    async def _judged(self, text: str, *, is_end: bool) -> str:
        if not self._inquests:
            return text
        self._piece += text
        passed = ""
        while len(self._piece) >= PIECE_CHARS:
            passed += await self._asked(piece_end(self._piece))
        return passed + (await self._asked(len(self._piece)) if is_end else "")

    async def _asked(self, end: int) -> str:
        piece = self._piece[:end]
        if piece.strip():
            for inquest in self._inquests:
                if not await self._judge(inquest, self._last + piece):
                    raise Blocked(inquest.check)
        self._last, self._piece = piece, self._piece[end:]
        return piece


def _tools_with_a_form(request: GenerateRequest) -> frozenset[str]:
    """Names of tools whose schemas restrict values beyond their types, so that a mask could break a call."""
    if request.tool_choice.mode not in (ToolMode.REQUIRED, ToolMode.NAMED):
        return frozenset()
    functions = (tool.get("function", {}) for tool in request.prompt.tools)
    return frozenset(each["name"] for each in functions if _has_form(each))


def _has_form(schema: Any) -> bool:
    if isinstance(schema, dict):
        return not _FORMS.isdisjoint(schema) or any(map(_has_form, schema.values()))
    return isinstance(schema, list) and any(map(_has_form, schema))


def _is_seen(delta: TokenDelta) -> bool:
    return bool(delta.text or delta.reasoning or delta.tool_calls or delta.finish is not None)


def _filtered(delta: TokenDelta) -> TokenDelta:
    """The end of a choice that a guardrail stopped."""
    return TokenDelta(
        request_id=delta.request_id,
        index=delta.index,
        finish=FinishReason.FILTERED,
        usage=delta.usage,
        timing=delta.timing,
    )


__all__ = ["GuardedStream", "GuardrailTriggered", "check_can_be_guarded"]
