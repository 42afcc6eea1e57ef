"""OpenVINO Model Server's body of a response; the sampling fields are the same as in its chats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

from serve_app import limits
from serve_app.api.dialects.chat.field_types import TEMPLATE_VARIABLES, Logprobs, TemplateKwargs
from serve_app.api.dialects.chat.response_format.grammar import Form
from serve_app.api.dialects.ovms.fields import AnswerFields, templating_of
from serve_app.api.dialects.responses import shapes
from serve_app.api.dialects.responses.fields import (
    FORMAT,
    FORMATS,
    ITEM_DOCS,
    OF_CHATS,
    VERBOSITY_DOC,
    InputItems,
    ReasoningOptions,
    ResponseFields,
    TextOptions,
)
from serve_app.api.protocol.field_doc import FieldDoc, doc
from serve_app.api.protocol.fields import Described, Flag, Integer, Sets
from serve_app.config import OvmsConfig
from serve_app.errors import InvalidField
from serve_app.types import Templating

_OWN_FORMAT: Final = "response_format"


class ResponseBody(ResponseFields, AnswerFields):
    """The body of a request for a response. None: the field is absent."""

    of_chats: ClassVar[Mapping[str, str]] = {
        name: ours for name, ours in OF_CHATS.items() if name != _OWN_FORMAT
    }

    logprobs: Logprobs = None
    chat_template_kwargs: TemplateKwargs = doc(
        "variables for the model's template; `add_generation_prompt` is one of them",
        accepts=TEMPLATE_VARIABLES,
    )
    input: InputItems = doc(
        "a string is what the user says; the items of one turn of the assistant are one message, also of "
        "one that only thought",
        accepts=f"a string or a list of 1 to {limits.MAX_MESSAGES} items; required, and not empty",
        required=True,
        members=ITEM_DOCS,
    )
    max_output_tokens: Annotated[int | None, Integer(1, limits.MAX_TOKENS), Sets("max_tokens")] = doc(
        "default up to the window; more than fits is clamped; 4000 with `ignore_eos`"
    )
    tools: Annotated[Any, Described(shapes.Tools)] = doc(
        "default none; a tool may have its members below `function`, as in chats",
        accepts=f"a list of up to {limits.MAX_TOOLS} function tools, and namespaces of them",
    )
    text: TextOptions = doc(
        "see its members",
        accepts="an object",
        members={
            "verbosity": VERBOSITY_DOC,
            "format": FieldDoc("OpenAI's form of `response_format`, and not beside it", accepts=FORMATS),
        },
    )
    reasoning: ReasoningOptions | None = doc(
        "see its members",
        accepts="an object",
        members={
            "effort": FieldDoc(
                "variables `reasoning_effort` and `enable_thinking` of the model's template; only none "
                "sets the second one to false"
            ),
            "summary": FieldDoc("thoughts are always sent as summaries, in full"),
        },
    )
    store: Flag = doc("nothing is kept; echoed in the answer, true is listed as ignored", default=True)

    def check(self, config: OvmsConfig) -> None:
        """Check combinations of fields. Raises InvalidField or UnsupportedField."""
        self.check_response()
        super().check(config)
        if self.stream and (self.n or 1) > 1:
            raise InvalidField("n", "must be 1 in a stream, whose events tell no choices apart")
        if self.input == "":
            raise InvalidField("input", "must not be empty")

    @property
    def token_limit(self) -> int | None:
        return self.max_output_tokens

    @property
    def num_logprobs(self) -> int | None:
        """As `ResponseFields.num_logprobs`, but `logprobs` turns log-probabilities on, too."""
        return (self.top_logprobs or 0) if self.logprobs else super().num_logprobs

    @property
    def names(self) -> dict[str, str]:
        """The replica's names of fields -> the client's, for errors."""
        form = FORMAT if self.response_format is None else _OWN_FORMAT
        asked = "logprobs" if self.logprobs else "top_logprobs" if self.top_logprobs else "include"
        return {**super().names, "response_format": form, "logprobs": asked}

    def form(self) -> Form:
        """The form of the answer, by `response_format` or `text.format`."""
        own, openais = super().form(), self.form_of_text()
        if own.grammar is not None and openais.grammar is not None:
            raise InvalidField(_OWN_FORMAT, f"must not be given beside {FORMAT}")
        return own if openais.grammar is None else openais

    def templating(self) -> Templating:
        """The variables of the template. Any effort but `none` switches thinking on. Raises InvalidField."""
        variables = self.chat_template_kwargs
        if self.effort is not None and isinstance(variables, dict | None):
            thinks = {"enable_thinking": self.effort != "none", "reasoning_effort": self.effort}
            variables = {**thinks, **(variables or {})}
        return templating_of(variables)
