"""One request in another protocol: the same prompt, and every option that the other protocol also has.

Options are matched by name. Options that the other protocol lacks, or lacks with this value, are named and
left out. The page itself writes the parts in which the shapes of chats differ. Independent of HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from serve_app.console.playground.options import FORMS, Option, options_of
from serve_app.console.playground.protocols import Protocol
from serve_app.console.playground.schemas import NESTED, Json, members_of

_SAME: Final = {
    "max_new_tokens": "max_tokens", "max_completion_tokens": "max_tokens", "max_output_tokens": "max_tokens",
    "stop_words": "stop", "stop_sequences": "stop", "reasoning.effort": "reasoning_effort",
    "output_config.effort": "reasoning_effort", "thinking.budget_tokens": "thinking_token_budget",
}  # fmt: skip
_THINKING: Final = "thinking.type"
_BUDGET: Final = "thinking.budget_tokens"
_SCALE_OF_ITS_OWN: Final = {"priority"}  # a small number is urgent in one protocol, a large one in another
_SAMPLED: Final = {"temperature", "top_k", "top_p", "typical_p", "seed"}


@dataclass(frozen=True, slots=True)
class Ask:
    """A request of the Playground.

    `body` is in the form of `protocol`; a header chooses `entity`. `shapes`: for a chat, what differs between
    the shapes of protocols: each shape's prompt, tools and form by dotted path.
    """

    protocol: Protocol
    model: str
    stream: bool
    body: Mapping[str, Any]
    entity: str | None = None
    shapes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def translated(document: Json, ask: Ask, target: Protocol) -> tuple[Ask, Sequence[str]]:
    """`ask` in the protocol `target`, and the names of the options that are lost on the way.

    In its own protocol, a request is unchanged. Raises ValueError if one is a chat and the other is text.
    """
    if target == ask.protocol:
        return ask, ()
    if target.mode != ask.protocol.mode:
        raise ValueError(f"{ask.protocol.id} and {target.id} do not accept the same prompt")
    body: dict[str, Any] = {"model": ask.model} if target.names_model else {}
    shaped = ask.shapes[target.shape] if ask.shapes else {target.prompt: ask.body[ask.protocol.prompt]}
    accepted = {_name(each.path): each for each in options_of(document, target, {})}
    members = members_of(document, target).keys()
    lost = [path for path in _of_shape(ask) if _place(path, target) not in shaped.keys() & members]
    for path, value in shaped.items():
        if path in members:
            _put(body, path, value)
    for path, value in _options(ask):
        name = _name(path)
        option = accepted.get(name)
        if option is not None and name not in _SCALE_OF_ITS_OWN and _takes(option, value):
            _put(body, option.path, value)
        elif path != _THINKING or _BUDGET not in dict(_options(ask)):  # a budget already implies thinking
            lost.append(path)
    _complete(body, accepted.values(), target, ask)
    if "stream" in members and ask.stream:
        body["stream"] = True
        if target.shape in ("chat", "text") and "stream_options" in members and "stream_options" in ask.body:
            body["stream_options"] = ask.body["stream_options"]
    return replace(ask, protocol=target, body=body), tuple(lost)


def _of_shape(ask: Ask) -> Iterator[str]:
    """The dotted paths of the shape-specific parts of the request, besides its prompt."""
    paths = ("tools", "tool_choice", FORMS.get(ask.protocol.shape))
    return (path for path in ask.shapes.get(ask.protocol.shape, ()) if path in paths)


def _place(path: str, target: Protocol) -> str:
    """The path of the same member in `target`."""
    return FORMS[target.shape] if path in FORMS.values() else path


def _options(ask: Ask) -> Iterator[tuple[str, Any]]:
    """The options of a request by dotted path."""
    own = {"model", "stream", "stream_options", ask.protocol.prompt, *ask.shapes.get(ask.protocol.shape, ())}
    return ((path, value) for path, value in _flat(ask.body) if path not in own)


def _flat(body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The members of a body by dotted path; a member with options of its own is replaced by these."""
    for name, value in body.items():
        if isinstance(value, Mapping) and name in NESTED:
            yield from ((f"{name}.{inner}", each) for inner, each in value.items())
        else:
            yield name, value


def _complete(body: dict[str, Any], options: Iterable[Option], target: Protocol, ask: Ask) -> None:
    """Add or remove members that protocols need to express the same request differently."""
    for each in options:
        if each.required:
            body.setdefault(each.path, int(each.at_first))
    if "budget_tokens" in body.get("thinking", {}):
        body["thinking"].setdefault("type", "enabled")
    if target.id == "mindie-text":
        parameters = body.get("parameters", {})
        if ask.body.get("temperature") == 0:
            for name in _SAMPLED & parameters.keys():  # greedy, which is the default
                del parameters[name]
        elif _SAMPLED & parameters.keys():
            parameters["do_sample"] = True


def _takes(option: Option, value: Any) -> bool:
    if option.kind == "number":
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if option.integer and not isinstance(value, int):
            return False
        least, most = option.minimum, option.maximum
        enough = least is None or (value > least if option.above else value >= least)
        return enough and (most is None or value <= most)
    return option.kind != "choice" or json.dumps(value) in option.choices


def _name(path: str) -> str:
    name = path.removeprefix("parameters.")
    return _SAME.get(name, name)


def _put(body: dict[str, Any], path: str, value: Any) -> None:
    *outer, last = path.split(".")
    for name in outer:
        body = body.setdefault(name, {})
    body[last] = value
