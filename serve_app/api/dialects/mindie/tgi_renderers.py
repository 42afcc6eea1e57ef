"""Answers of MindIE's `/infer` and of Text Generation Inference's routes: events or an object."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from typing_extensions import TypedDict

from serve_app.api.dialects.chat.wire import encode
from serve_app.api.dialects.mindie import answers
from serve_app.api.dialects.mindie.errors import broken
from serve_app.api.dialects.mindie.wire import FINISH
from serve_app.api.protocol.dialect import Choice
from serve_app.errors import ServeError
from serve_app.types import ModelInfo, TextLogprob, TokenDelta, Usage


class _Alternatives(TypedDict, total=False):
    top_tokens: list[answers.TgiToken]


@dataclass(frozen=True, slots=True)
class ContinueForm:
    """What an answer reports."""

    details: bool
    seed: int | None  # with which tokens are drawn; None: the likeliest one is taken
    prompt: str  # before the text; empty: left out
    num_top: int  # alternatives of each token


class TgiRenderer:
    """Writes TGI's events, or its single object."""

    def __init__(self, info: ModelInfo, form: ContinueForm) -> None:
        self._form = form
        self._end_texts = dict(zip(info.eos_token_ids, info.eos_tokens, strict=False))
        self._text = form.prompt
        self._generated = 0

    def event(self, prompt: int, delta: TokenDelta) -> bytes:
        if not delta.token_ids and delta.finish is None:
            return b""
        self._text += delta.text
        self._generated += len(delta.token_ids)
        return b"data:" + encode(self._fields(delta)) + b"\n\n"

    def end(self, usage: Usage) -> bytes:
        return b""

    def broken(self, error: ServeError) -> bytes:
        return b"data:" + broken(error) + b"\n\n"

    def whole(self, choices: Iterable[Choice], usage: Usage) -> bytes:
        (choice,) = choices
        text = self._form.prompt + choice.text
        if not self._form.details:
            return encode({"generated_text": text})
        self._generated = len(choice.token_ids)
        return encode({"generated_text": text, "details": self._details(choice, usage)})

    def _fields(self, delta: TokenDelta) -> answers.TgiEvent | answers.InferEvent:
        """The members of an event; the last one has details."""
        known = delta.logprobs[-1] if delta.logprobs else None
        token = self._token(delta.token_ids[-1], delta.text, known) if delta.token_ids else None
        top: _Alternatives = {}
        if known is not None and self._form.num_top:
            top["top_tokens"] = self._alternatives(known)
        ended: answers.TgiEventDetails | None = None
        if delta.finish is not None and self._form.details:
            ended = {
                "finish_reason": FINISH[delta.finish],
                "generated_tokens": self._generated,
                "input_length": delta.usage.prompt_tokens,
                "seed": self._form.seed,
            }
        return {
            "index": self._generated,
            "token": token,
            **top,
            "generated_text": None if delta.finish is None else self._text,
            "details": ended,
        }

    def _details(self, choice: Choice, usage: Usage) -> answers.TgiDetails | answers.InferDetails:
        details: answers.TgiDetails = {
            "prompt_tokens": usage.prompt_tokens,
            "finish_reason": FINISH[choice.finish] if choice.finish else None,
            "generated_tokens": self._generated,
            "seed": self._form.seed,
            "prefill": [
                {"id": token.token_id, "text": token.text, "logprob": token.logprob}
                for token in choice.prompt_logprobs or ()
            ],
            "tokens": [self._token(token.token_id, token.text, token) for token in choice.logprobs],
        }
        if self._form.num_top:
            details["top_tokens"] = [self._alternatives(token) for token in choice.logprobs]
        return details

    def _token(self, token_id: int, text: str, known: TextLogprob | None) -> answers.TgiToken:
        """`text`: the token's text, empty if the token is the end or only a part of a character."""
        is_end = token_id in self._end_texts
        return {
            "id": token_id,
            "text": self._end_texts[token_id] if is_end and not text else text,
            "logprob": None if known is None else known.logprob,
            "special": is_end,
        }

    def _alternatives(self, token: TextLogprob) -> list[answers.TgiToken]:
        return [self._token(each.token_id, each.text, each) for each in token.top]


class ListRenderer(TgiRenderer):
    """Writes answers to POST /: TGI's events, or a list that contains its object."""

    def whole(self, choices: Iterable[Choice], usage: Usage) -> bytes:
        return b"[" + super().whole(choices, usage) + b"]"


class InferRenderer(TgiRenderer):
    """Writes the events, or the object, of MindIE's own route."""

    def event(self, prompt: int, delta: TokenDelta) -> bytes:
        return super().event(prompt, delta).replace(b"data:", b"data: ", 1)

    def broken(self, error: ServeError) -> bytes:
        return b"data: " + broken(error) + b"\n\n"

    def _fields(self, delta: TokenDelta) -> answers.InferEvent:
        """The members of an event; the last event has the whole text instead of its token's text."""
        prefill = decode = None
        if delta.timing is not None:
            prefill = round(delta.timing.first_token_s * 1e3, 2)
        elif delta.step is not None:
            decode = round(delta.step.run_s * 1e3, 2)
        token_id = delta.token_ids[-1] if delta.token_ids else None
        if delta.finish is None:
            token: answers.InferToken = {"id": token_id, "text": delta.text}
            return {"prefill_time": prefill, "decode_time": decode, "token": token}
        ended: answers.Ended = {
            "finish_reason": FINISH[delta.finish],
            "generated_tokens": self._generated,
            "seed": self._form.seed,
        }
        return {
            "prefill_time": prefill,
            "decode_time": decode,
            "generated_text": self._text,
            "details": ended if self._form.details else None,
            "token": {"id": token_id, "text": None},
        }

    def _details(self, choice: Choice, usage: Usage) -> answers.InferDetails:
        return {
            "finish_reason": FINISH[choice.finish] if choice.finish else None,
            "generated_tokens": self._generated,
            "generated_token_ids": choice.token_ids,
            "seed": self._form.seed,
        }
