"""POST /tokenize and /detokenize: the tokens of a prompt, and the text that tokens stand for.

The shapes are vLLM's: `{model, prompt | messages, ...}` -> `{count, max_model_len, tokens,
token_strs}`, and `{model, tokens}` -> `{prompt}`. A chat is rendered with the model's own template, just as
for an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from typing_extensions import TypedDict

from serve_app import limits
from serve_app.api.admission.estimates import prompt_tokens
from serve_app.api.dialects.chat import shapes
from serve_app.api.dialects.chat.messages import parse_messages
from serve_app.api.dialects.chat.templating import TemplatingFields
from serve_app.api.dialects.chat.tools import parse_tools
from serve_app.api.edge.body import WireModel, parse_body
from serve_app.api.exchange.ask import Inquiry, count_tokens
from serve_app.api.protocol.field_doc import doc
from serve_app.api.protocol.fields import MAX_TOKEN_ID, Described, Flag, Integers, Text
from serve_app.errors import InvalidField
from serve_app.types import Detokenized as DetokenizedReply
from serve_app.types import DetokenizeRequest, ModelInfo, Prompt, TokenizeRequest, Tokens


class Tokenized(TypedDict):
    """The tokens of a prompt, and the size of the model's window in tokens."""

    count: int
    max_model_len: int
    tokens: Sequence[int]
    token_strs: Sequence[str] | None


class Detokenized(TypedDict):
    """The text of tokens."""

    prompt: str


def required(name: str | None) -> str:
    """The model's name. Raises InvalidField."""
    if name is None:
        raise InvalidField("model", "is required")
    return name


class TokenizeBody(TemplatingFields):
    """A prompt: a text, or a chat with the fields that its template needs. None: absent."""

    model: Annotated[str | None, Text(1, limits.MAX_MODEL_NAME_CHARS)] = doc(required=True)
    prompt: Annotated[str | None, Text(0, limits.MAX_QUESTION_CHARS)] = None
    messages: Annotated[Any, Described(shapes.Messages)] = None
    tools: Annotated[Any, Described(shapes.Tools)] = None
    add_special_tokens: Flag = None
    return_token_strs: Flag = None

    def to_prompt(self) -> Prompt:
        """Raises InvalidField."""
        if (self.prompt is None) == (self.messages is None):
            raise InvalidField("prompt", "either prompt or messages must be given")
        templating = self.templating()
        if self.prompt is not None:
            return Prompt(text=self.prompt)
        if self.add_special_tokens:
            raise InvalidField(
                "add_special_tokens", "must not be true beside messages, whose template adds them itself"
            )
        offer = parse_tools(self.tools, None, parallel=True)
        return Prompt(messages=parse_messages(self.messages), tools=offer.tools, templating=templating)


class DetokenizeBody(WireModel):
    """Tokens whose text is wanted."""

    model: Annotated[str | None, Text(1, limits.MAX_MODEL_NAME_CHARS)] = doc(required=True)
    tokens: Annotated[tuple[int, ...] | None, Integers(limits.MAX_QUESTION_TOKENS, 0, MAX_TOKEN_ID)] = doc(
        required=True
    )


def parse_tokenize(raw: bytes) -> Inquiry[Tokens]:
    """Raises InvalidBody or InvalidField."""
    body = parse_body(TokenizeBody, raw)
    question = TokenizeRequest(
        id="",
        prompt=body.to_prompt(),
        add_special_tokens=body.add_special_tokens is not False,
        texts=bool(body.return_token_strs),
    )
    return Inquiry(
        model=required(body.model),
        questions=(question,),
        answer=_tokens,
        estimate=lambda: prompt_tokens(question.prompt),
        tokens=count_tokens,
    )


def parse_detokenize(raw: bytes) -> Inquiry[DetokenizedReply]:
    """Raises InvalidBody or InvalidField."""
    body = parse_body(DetokenizeBody, raw)
    if body.tokens is None:
        raise InvalidField("tokens", "is required")
    question = DetokenizeRequest(id="", token_ids=body.tokens)
    size = len(body.tokens)
    return Inquiry(
        model=required(body.model),
        questions=(question,),
        answer=_text,
        estimate=lambda: size,
        tokens=lambda replies: size,
    )


def _tokens(info: ModelInfo, replies: list[Tokens]) -> Tokenized:
    (reply,) = replies
    return {
        "count": len(reply.token_ids),
        "max_model_len": info.context_window,
        "tokens": reply.token_ids,
        "token_strs": reply.texts,
    }


def _text(info: ModelInfo, replies: list[DetokenizedReply]) -> Detokenized:
    (reply,) = replies
    return {"prompt": reply.text}
