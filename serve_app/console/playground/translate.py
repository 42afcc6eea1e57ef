"""One request in another protocol: the same prompt, and every option that the other protocol also has.

Options are matched by name. What the other protocol does not have, or not with this value, is named and
left out. Knows no HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from serve_app.console.playground.options import Option, options_of
from serve_app.console.playground.protocols import Protocol
from serve_app.console.playground.schemas import Json, members_of

_SAME: Final = {"max_new_tokens": "max_tokens", "max_completion_tokens": "max_tokens", "stop_words": "stop"}
_SCALE_OF_ITS_OWN: Final = {"priority"}  # a small number is urgent in one protocol, a large one in another
_SAMPLED: Final = {"temperature", "top_k", "top_p", "typical_p", "seed"}
_REQUIRED_MAX_TOKENS: Final = 64  # for a protocol that has no default


@dataclass(frozen=True, slots=True)
class Ask:
    """A request of the Playground. `body` is what `protocol` wants; `entity` is chosen by a header."""

    protocol: Protocol
    model: str
    stream: bool
    body: Mapping[str, Any]
    entity: str | None = None


def translated(document: Json, ask: Ask, target: Protocol) -> tuple[Ask, Sequence[str]]:
    """`ask` in the protocol `target`, and the names of the options that are lost on the way.

    A request stays what it is in its own protocol. Raises ValueError for a chat as text, and the reverse.
    """
    if target == ask.protocol:
        return ask, ()
    if target.mode != ask.protocol.mode:
        raise ValueError(f"{ask.protocol.id} and {target.id} do not take the same prompt")
    body: dict[str, Any] = {"model": ask.model} if target.names_model else {}
    body[target.prompt] = ask.body[ask.protocol.prompt]
    accepted = {_name(each.path): each for each in options_of(document, target, {})}
    members = members_of(document, target).keys()
    lost = []
    for path, value in _options(ask):
        name = _name(path)
        if path in ("tools", "stream_options"):
            fits, place = path in members, path
        else:
            option = accepted.get(name)
            fits = option is not None and name not in _SCALE_OF_ITS_OWN and _takes(option, value)
            place = option.path if option else name
        if fits:
            _put(body, place, value)
        elif path != "stream_options":
            lost.append(path)
    _complete(body, target, ask)
    if "stream" in members and ask.stream:
        body["stream"] = True
    return Ask(target, ask.model, ask.stream, body, ask.entity), tuple(lost)


def _options(ask: Ask) -> Iterator[tuple[str, Any]]:
    """The options of a request by dotted path."""
    own = {"model", "stream", ask.protocol.prompt}
    for name, value in ask.body.items():
        if name == "parameters" and isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", each) for inner, each in value.items())
        elif name not in own:
            yield name, value


def _complete(body: dict[str, Any], target: Protocol, ask: Ask) -> None:
    """What one protocol says by leaving a member out, and another one by a member."""
    if target.dialect == "triton":
        body.setdefault("max_tokens", _REQUIRED_MAX_TOKENS)
    elif target.id == "mindie-text":
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
    if option.kind == "choice" and option.choices == ("true", "false"):
        return isinstance(value, bool)
    return True


def _name(path: str) -> str:
    name = path.rsplit(".", 1)[-1]
    return _SAME.get(name, name)


def _put(body: dict[str, Any], path: str, value: Any) -> None:
    *outer, last = path.split(".")
    for name in outer:
        body = body.setdefault(name, {})
    body[last] = value
