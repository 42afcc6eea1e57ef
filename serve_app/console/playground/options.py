"""The options of a request as form controls, made from the OpenAPI document.

A member that this module does not know still gets a control, whose kind follows from its schema.
Does not deal with HTML.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final, Literal

from serve_app.console.playground.protocols import Protocol, Shape
from serve_app.console.playground.schemas import Json, alternatives, members_of

Kind = Literal["number", "choice", "text", "lines", "numbers", "json", "tool_choice", "format"]

# Members that the page itself writes, and members with another name in the same protocol.
_PAGES_OWN: Final = {
    "model", "messages", "system", "input", "instructions", "prompt", "text_input", "id", "stream",
    "stream_options", "tools",
}  # fmt: skip
_OTHER_NAMES: Final[Mapping[Shape, Set[str]]] = {
    "chat": {"functions", "function_call", "max_completion_tokens"},
    "messages": {"stop", "output_format"},
    "responses": {"response_format"},
    "text": {"max_completion_tokens"},
}
TOOL_CHOICE: Final = "tool_choice"
# By shape: the body's member for the answer's format, and the values of `tool_choice`.
FORMS: Final[Mapping[Shape, str]] = {
    "chat": "response_format",
    "messages": "output_config.format",
    "responses": "text.format",
}
_CHOICES: Final[Mapping[Shape, tuple[str, ...]]] = {
    "chat": ("auto", "none", "required"),
    "messages": ("auto", "any", "none"),
    "responses": ("auto", "none", "required"),
}
# Initial values of required members.
_AT_FIRST: Final[Mapping[Shape, str]] = {"text": "64", "messages": "1024"}
# Triton's tensors that have another name for the text model, are not text, or do not affect the answer.
_TENSORS: Final = {
    "request_output_len", "streaming", "stop", "runtime_top_k", "runtime_top_p", "len_penalty", "min_length",
    "random_seed", "return_context_logits", "return_generation_logits", "exclude_input_in_output",
}  # fmt: skip
_FAMILIES_OF_TENSORS: Final = (
    "input_", "prompt_", "lora_", "embedding_bias", "draft_", "num_draft", "use_draft", "decoder_",
    "lookahead_", "retention_",
)  # fmt: skip

_WIDE: Final = 2**31 - 1  # a bound this large only reflects the number's width, so it counts as none

MORE: Final = "More"
GROUPS: Final[Mapping[str, Sequence[str]]] = {
    "Sampling": (
        "temperature", "top_p", "top_k", "min_p", "typical_p", "seed", "do_sample", "reasoning_effort",
        "reasoning.effort", "output_config.effort",
    ),
    "Length and end": (
        "max_tokens", "max_output_tokens", "max_new_tokens", "min_tokens", "stop", "stop_sequences",
        "stop_words", "stop_token_ids", "ignore_eos", "include_stop_str_in_output",
    ),
    "Repetition and words": (
        "presence_penalty", "frequency_penalty", "repetition_penalty", "no_repeat_ngram_size",
        "repetition_detection", "bad_words", "logit_bias", "allowed_token_ids",
    ),
    "Thoughts": (
        "thinking_token_budget", "thinking.type", "thinking.budget_tokens", "thinking.display",
        "reasoning.summary",
    ),
    "Form of the answer": (
        *FORMS.values(), "text.verbosity", "structured_outputs", "guided_json", "guided_regex",
        "guided_choice", "guided_grammar", "guided_whitespace_pattern", "guided_decoding_guide_type",
        "guided_decoding_guide",
    ),
    "Tools": ("tool_choice", "parallel_tool_calls"),
    "Log-probabilities": ("logprobs", "top_logprobs", "include", "return_log_probs", "prompt_logprobs"),
    "Several answers and search": (
        "n", "best_of", "use_beam_search", "beam_width", "length_penalty", "early_stopping",
        "num_beam_groups", "diversity_penalty", "beam_search_diversity_rate", "num_return_sequences",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Option:
    """One control. Bounds are None if the schema has none; `choices` are JSON texts."""

    path: str
    kind: Kind
    description: str
    integer: bool = False
    minimum: float | None = None
    above: bool = False  # `minimum` itself is not allowed
    maximum: float | None = None
    max_length: int | None = None
    choices: tuple[str, ...] = ()
    default: str | None = None  # as a person writes it
    required: bool = False
    at_first: str = ""  # initial value of a required option

    @property
    def name(self) -> str:
        """The name to show, including the object that contains it, unless that object is `parameters`."""
        return self.path.removeprefix("parameters.")

    @property
    def least(self) -> str:
        """`minimum` as a person writes it; "" if there is none."""
        return "" if self.minimum is None else _written(self.minimum)

    @property
    def most(self) -> str:
        """`maximum` as a person writes it; "" if there is none."""
        return "" if self.maximum is None else _written(self.maximum)

    @property
    def range(self) -> str:
        """The bounds in words. A bound that only reflects the number's width is left out."""
        if self.kind != "number":
            return ""
        least = "" if self.minimum is None or self.minimum <= -_WIDE else self.least
        most = "" if self.maximum is None or self.maximum >= _WIDE else self.most
        if least and most:
            return f"{'above ' if self.above else ''}{least} to {most}"
        if least:
            return f"above {least}" if self.above else f"{least} or more"
        return f"up to {most}" if most else f"any {'whole ' if self.integer else ''}number"


@dataclass(frozen=True, slots=True)
class Group:
    """Options that are shown together."""

    title: str
    options: tuple[Option, ...]


def groups_of(document: Json, protocol: Protocol, defaults: Mapping[str, float]) -> list[Group]:
    """The options of `protocol` in groups; those without a group come last.

    `defaults` are the model's own, by name. Defaults that the protocol states take precedence.
    """
    options = options_of(document, protocol, defaults)
    by_name = {each.name: each for each in options}
    grouped = {name for names in GROUPS.values() for name in names}
    found = [
        Group(title, tuple(by_name[name] for name in names if name in by_name))
        for title, names in GROUPS.items()
    ]
    rest = tuple(each for each in options if each.name not in grouped)
    return [each for each in [*found, Group(MORE, rest)] if each.options]


def options_of(document: Json, protocol: Protocol, defaults: Mapping[str, float]) -> list[Option]:
    """Every option of `protocol`, in the order of the document."""
    found = [
        _option(document, path, member, defaults, protocol.shape)
        for path, member in members_of(document, protocol).items()
        if path not in _PAGES_OWN | _OTHER_NAMES[protocol.shape]
    ]
    if protocol.dialect != "triton":
        return found
    shown = [each for each in found if each.kind not in ("json", "numbers") and each.path not in _TENSORS]
    return [each for each in shown if not each.path.startswith(_FAMILIES_OF_TENSORS)]


def _option(document: Json, path: str, member: Json, defaults: Mapping[str, float], shape: Shape) -> Option:
    accepted = [each for each in alternatives(document, member) if not _is_scalar_in_brackets(each)]
    first = accepted[0] if accepted else {}
    described = str(member.get("description", ""))
    default = _default(path, member, described, defaults)
    required = re.search(r"[,.] required$", described) is not None
    choices = tuple(choice for each in accepted for choice in _choices(each))
    if path == FORMS.get(shape):
        return Option(path, "format", described)
    if path == TOOL_CHOICE:
        return Option(path, "tool_choice", described, choices=_CHOICES[shape])
    if choices and all(_choices(each) for each in accepted):
        return Option(path, "choice", described, choices=choices, default=default)
    kind = _kind(accepted)
    number = first if kind == "number" else {}
    return Option(
        path,
        kind,
        described,
        integer=number.get("type") == "integer",
        minimum=number.get("minimum", number.get("exclusiveMinimum")),
        above="exclusiveMinimum" in number,
        maximum=number.get("maximum"),
        max_length=first.get("maxLength") if kind == "text" else None,
        choices=tuple(json.loads(each) for each in choices) if kind == "json" and choices else (),
        default=default,
        required=required,
        at_first=_AT_FIRST[shape] if required else "",
    )


def _is_scalar_in_brackets(schema: Json) -> bool:
    """Whether this is a list of one element, which Triton accepts in place of any scalar."""
    return schema.get("type") == "array" and schema.get("maxItems") == 1


def _choices(schema: Json) -> list[str]:
    if schema.get("type") == "boolean":
        return ["true", "false"]
    if "const" in schema:
        return [json.dumps(schema["const"])]
    return [json.dumps(each) for each in schema.get("enum", [])]


def _kind(accepted: Sequence[Json]) -> Kind:
    types = [_type(each) for each in accepted]
    if types and types[0] in ("integer", "number") and "boolean" not in types:
        return "number"
    if types == ["string"]:
        return "text"
    if "array of string" in types and set(types) <= {"string", "array of string", "array of array"}:
        return "lines"
    return "numbers" if types == ["array of integer"] else "json"


def _type(schema: Json) -> str:
    kind = str(schema.get("type", "object"))
    if kind != "array":
        return kind
    items = schema.get("items", {})
    return f"array of {items.get('type', 'object')}"


def _default(path: str, member: Json, described: str, defaults: Mapping[str, float]) -> str | None:
    name = path.rsplit(".", 1)[-1]
    if name in defaults and described.startswith("default the model's"):
        return f"{_written(defaults[name])}, the model's"
    if member.get("default") is not None:
        return _written(member["default"])
    default = re.match(r"default ([^;.]+(?:\.\d+)?)", described)
    return default[1] if default else None


def _written(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return json.dumps(value)
    return str(int(value)) if value == int(value) and abs(value) < 1e18 else repr(value)
