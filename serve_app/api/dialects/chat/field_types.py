"""Types of fields that several protocols share, with their ranges and descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field

from serve_app import limits
from serve_app.api.dialects.chat import shapes
from serve_app.api.dialects.chat.processors import Processors
from serve_app.api.protocol.field_doc import FieldDoc, doc
from serve_app.api.protocol.fields import (
    MAX_TOKEN_ID,
    Biases,
    Described,
    Flag,
    Integer,
    Integers,
    Mark,
    Number,
    Sets,
    Text,
    Texts,
    as_integer,
    checked,
    refusal,
)
from serve_app.types import ProcessorCall

TEMPLATE_VARIABLES: Final = (
    f"an object of up to {limits.MAX_TEMPLATE_VARIABLES} names, "
    f"{limits.MAX_TEMPLATE_VARIABLES_CHARS} characters of JSON"
)


def _truncation(value: Any) -> int:
    number = as_integer(value)
    if number is None or not (number == -1 or 1 <= number <= limits.MAX_TOKENS):
        raise refusal(f"must be -1 or an integer from 1 to {limits.MAX_TOKENS}")
    return number


Truncation: Final = checked(_truncation, Literal[-1] | Annotated[int, Field(ge=1, le=limits.MAX_TOKENS)])

ModelName: TypeAlias = Annotated[
    str | None,
    Text(1, limits.MAX_MODEL_NAME_CHARS),
    doc("the endpoint that answers", accepts="; required unless the path names the endpoint", required=True),
]
Temperature: TypeAlias = Annotated[
    float | None, Number(0, limits.MAX_TEMPERATURE), doc("default the model's, else 1.0; 0 is greedy")
]
TopP: TypeAlias = Annotated[
    float | None, Number(0, 1, above=True), doc("default the model's, else 1.0; nucleus")
]
TopK: TypeAlias = Annotated[
    int | None,
    Integer(-1, limits.MAX_TOKENS),
    doc("default the model's, else off; −1 and 0 are off, 1 is greedy"),
]
MinP: TypeAlias = Annotated[float | None, Number(0, 1), doc("default the model's, else 0, off")]
TypicalP: TypeAlias = Annotated[float | None, Number(0, 1, above=True), doc(", off", default=1.0)]
RepetitionPenalty: TypeAlias = Annotated[
    float | None,
    Number(0, limits.MAX_REPETITION_PENALTY, above=True),
    doc("default the model's, else 1.0; sees prompt and output"),
]
Penalty: TypeAlias = Annotated[
    float | None, Number(-limits.MAX_PENALTY, limits.MAX_PENALTY), doc("sees the output", default=0)
]
LogitBias: TypeAlias = Annotated[
    tuple[tuple[int, float], ...] | None,
    Biases(limits.MAX_LOGIT_BIAS, MAX_TOKEN_ID, limits.MAX_ABS_LOGIT_BIAS),
    Mark.UNANSWERED,
    doc("default none; added to the logits first of all"),
]
Seed: TypeAlias = Annotated[
    int | None,
    Integer(-(2**63), 2**63 - 1),
    doc("default drawn anew; the same seed gives the same tokens, alone or among others"),
]
Stop: TypeAlias = Annotated[
    tuple[str, ...] | None,
    Texts(limits.MAX_STOP_STRINGS, limits.MAX_STOP_CHARS, single=True),
    doc("default none; ends the answer before the match"),
]
StopTokenIds: TypeAlias = Annotated[
    tuple[int, ...] | None,
    Integers(limits.MAX_STOP_TOKEN_IDS, 0, MAX_TOKEN_ID),
    doc("default none; ends the answer"),
]
LogitsProcessors: TypeAlias = Annotated[
    tuple[ProcessorCall, ...] | None,
    Processors,
    Mark.UNANSWERED,
    doc("default none; processors that the operator registered, an unknown name is an error"),
]
MinTokens: TypeAlias = Annotated[
    int | None, Integer(0, limits.MAX_TOKENS), doc("no end before this many tokens", default=0)
]
User: TypeAlias = Annotated[str | None, Text(0, limits.MAX_USER_CHARS), doc("a sticky key for A/B splits")]
Choices: TypeAlias = Annotated[int | None, Integer(1, limits.MAX_N), doc("choices of one prompt", default=1)]
BestOf: TypeAlias = Annotated[
    int | None,
    Integer(1, limits.MAX_BEST_OF),
    doc(
        "default `n`; this many are drawn, the likeliest are kept; the width with `use_beam_search`",
        accepts="; at least `n`, equal to it in a stream",
    ),
]
PromptLogprobs: TypeAlias = Annotated[
    int | None,
    Integer(0, limits.MAX_LOGPROBS),
    doc(
        "default none; log-probabilities of the prompt's tokens, this many alternatives each, in vLLM's form",
        accepts="; not in a stream",
    ),
]
TruncatePrompt: TypeAlias = Annotated[
    int | None,
    Truncation,
    doc("default none; keeps this many last tokens of the prompt, −1 as many as fit beside the length"),
]
MaxCompletionTokens: TypeAlias = Annotated[
    int | None,
    Integer(1, limits.MAX_TOKENS),
    Sets("max_tokens"),
    doc("the same", accepts="; equal to `max_tokens` if both are given"),
]
TopLogprobs: TypeAlias = Annotated[
    int | None,
    Integer(0, limits.MAX_LOGPROBS),
    doc("alternatives a token", accepts="; above 0 needs `logprobs: true`", default=0),
]
Functions: TypeAlias = Annotated[
    Any,
    Described(shapes.Functions),
    Mark.UNANSWERED,
    doc(
        "deprecated form of `tools`, answered with `function_call`",
        accepts=f"a list of up to {limits.MAX_TOOLS} functions; not beside `tools`",
    ),
]
FunctionCall: TypeAlias = Annotated[
    Any,
    Described(shapes.FunctionCallChoice),
    doc("deprecated form of `tool_choice`", accepts="none, auto or an object that names a function"),
]
TemplateKwargs: TypeAlias = Annotated[
    Any,
    Described(shapes.TemplateVariables),
    Mark.UNANSWERED,
    doc("variables for the model's template", accepts=TEMPLATE_VARIABLES),
]
Tools: TypeAlias = Annotated[
    Any,
    Described(shapes.Tools),
    Mark.UNANSWERED,
    doc("default none", accepts=f"a list of up to {limits.MAX_TOOLS} function tools"),
]
ToolChoice: TypeAlias = Annotated[
    Any,
    Described(shapes.ToolChoice),
    doc("default auto", accepts="none, auto, required or an object that names a tool"),
]
Stream: TypeAlias = Annotated[Flag, doc("true answers with server-sent events", default=False)]
ParallelToolCalls: TypeAlias = Annotated[Flag, doc("false allows one call", default=True)]
Logprobs: TypeAlias = Annotated[Flag, doc("log-probabilities of the output's tokens", default=False)]

# Forms of the answer: fields that the bodies of OpenAI's protocol have besides those of `SharedFields`.
GUIDES: Final[Mapping[str, Any]] = {
    "response_format": Annotated[
        shapes.ResponseFormat,
        FieldDoc(
            "default text; the answer matches",
            accepts=(
                "an object: `type` is text, json_object, or json_schema with `json_schema` "
                "{`name`, `schema`, `strict`, `description`}"
            ),
        ),
    ],
    "guided_json": Annotated[
        shapes.SchemaOrText,
        FieldDoc(
            "the answer matches it; one such field at a time",
            accepts="a JSON Schema, as an object or as text",
        ),
    ],
    "guided_regex": Annotated[
        shapes.Regex,
        FieldDoc("the answer matches it", accepts=f"a string of 1 to {limits.MAX_REGEX_CHARS} characters"),
    ],
    "guided_choice": Annotated[
        shapes.Choices,
        FieldDoc("the answer is one of them", accepts=f"a list of 1 to {limits.MAX_GRAMMAR_CHOICES} strings"),
    ],
    "guided_grammar": Annotated[
        shapes.GrammarText,
        FieldDoc(
            "the answer matches the Lark or GBNF grammar; `<name>` outside of quotes is a token of the model",
            accepts=f"a string of 1 to {limits.MAX_GRAMMAR_CHARS} characters",
        ),
    ],
    "structured_outputs": Annotated[
        shapes.StructuredOutputs,
        FieldDoc(
            "as the `guided_` field of that name; true: compact",
            accepts=(
                "an object with one of `json`, `json_object`, `regex`, `choice`, `grammar`; "
                "with JSON also `disable_any_whitespace` or `whitespace_pattern`"
            ),
        ),
    ],
    "guided_whitespace_pattern": Annotated[
        str,
        FieldDoc(
            'default: as under "JSON by a schema"; what is allowed between tokens of JSON',
            accepts="a regex of up to 8 blanks or classes of blanks, each perhaps with ?, *, + or {m,n}",
        ),
    ],
}
