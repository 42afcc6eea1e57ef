"""Fields of Databricks' bodies with their ranges, and the endpoint's limits on them.

A body is checked against its endpoint too: several fields depend on the endpoint's kind and the
operator's settings. Unknown keys are errors. Depends neither on messages nor on prompts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, TypeAlias, TypeVar

import pydantic_core
from pydantic import ConfigDict, Field

from serve_app import limits
from serve_app.api.dialects.chat import field_types
from serve_app.api.dialects.chat.fields import StreamOptions
from serve_app.api.dialects.chat.sampling import sampling_params
from serve_app.api.edge.body import WireModel, parse_body
from serve_app.api.protocol.field_doc import FieldDoc, doc
from serve_app.api.protocol.fields import Described, Integer, Number, Text, checked, refusal
from serve_app.endpoints.endpoint import Endpoint, Kind, Task
from serve_app.errors import InvalidBody, InvalidField
from serve_app.types import SamplingParams

MAX_UNKNOWN_NAME_CHARS: Final = 100  # of a key that is repeated in an error
MAX_REPETITION_PENALTY: Final = 2.0

REASONING_EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh")

# The main field of each task; it reveals a body that is meant for another task.
SUBJECT: Final[Mapping[Task, str]] = MappingProxyType(
    {Task.CHAT: "messages", Task.COMPLETIONS: "prompt", Task.EMBEDDINGS: "input"}
)


@dataclass(frozen=True, slots=True)
class RouteContext:
    """The facts that are available before the body is read."""

    find: Callable[[str], Endpoint]  # by name; raises ModelNotFound
    accepts_events: bool  # the client asks for a stream by its header `Accept`


def _text_map(value: Any) -> dict[str, str]:
    if not (isinstance(value, dict) and all(isinstance(item, str) for item in value.values())):
        raise refusal("must map names to strings")
    return value


TextMap: Final = checked(_text_map, dict[str, str])
EndpointName: TypeAlias = Annotated[str, Field(min_length=1, max_length=limits.MAX_MODEL_NAME_CHARS)]


class TaskFields(WireModel):
    """The fields that the bodies of all tasks share. None: absent."""

    task: ClassVar[Task]

    model_config = ConfigDict(json_schema_extra={"additionalProperties": False})

    model: Annotated[Any, Described(EndpointName)] = doc(
        "names the endpoint; ignored where the path does",
        accepts=(
            f"a string of 1 to {limits.MAX_MODEL_NAME_CHARS} characters; required below "
            "`/serving-endpoints/chat/completions` and its like"
        ),
    )
    user: field_types.User = None
    client_request_id: Annotated[str | None, Text(0, limits.MAX_USER_CHARS)] = doc("accepted, no effect")
    usage_context: Annotated[dict[str, str] | None, TextMap] = doc("accepted, no effect")
    extra_params: Annotated[dict[str, str] | None, TextMap] = doc(
        "each value is JSON, or else text, and counts as a field of its name; not one that is there already"
    )

    def endpoint(self, target: RouteContext, of_path: str | None) -> Endpoint:
        """The endpoint that the path names, or else the one in the body.

        Raises InvalidField or ModelNotFound; raises InvalidBody if the endpoint has another task.
        """
        name = self.model if of_path is None else of_path
        if not isinstance(name, str) or not 1 <= len(name) <= limits.MAX_MODEL_NAME_CHARS:
            raise InvalidField(
                "model", f"is required and must be a string of 1 to {limits.MAX_MODEL_NAME_CHARS} characters"
            )
        endpoint = target.find(name)
        if endpoint.task is not self.task:
            raise InvalidBody(f"model: the endpoint's task is {endpoint.task}, not {self.task}")
        return endpoint

    def check_keys(self) -> None:
        """Raises InvalidBody for an unknown key, and for a body of another task."""
        unknown = list(self.extra)
        subject = SUBJECT[self.task]
        other = next((name for name in SUBJECT.values() if name in unknown), None)
        if other is not None and getattr(self, subject) is None:
            raise InvalidBody(f"{other}: the endpoint's task is {self.task}, which takes {subject} instead")
        if unknown:
            name = json.dumps(unknown[0][:MAX_UNKNOWN_NAME_CHARS], ensure_ascii=False)
            raise InvalidBody(f"json: unknown field {name}")


FieldsT = TypeVar("FieldsT", bound=TaskFields)


def parse_fields(model: type[FieldsT], raw: bytes) -> FieldsT:
    """The body, with its `extra_params` moved to the top level. Raises InvalidBody or InvalidField."""
    body = parse_body(model, raw)
    if body.extra_params:
        body = parse_body(model, _merged(raw, body.extra_params))
    body.check_keys()
    return body


def _merged(raw: bytes, extra: dict[str, str]) -> bytes:
    """Merge `extra` into the body `raw`. A value that is not JSON is kept as a string."""
    given = {name: value for name, value in pydantic_core.from_json(raw).items() if value is not None}
    twice = next((name for name in extra if name in given), None)
    if twice is not None:
        raise InvalidField(
            "extra_params", f"{twice[:MAX_UNKNOWN_NAME_CHARS]} must not be given outside of it too"
        )
    del given["extra_params"]
    return pydantic_core.to_json({**given, **{name: _value(text) for name, text in extra.items()}})


def _value(text: str) -> Any:
    try:
        return pydantic_core.from_json(text, allow_inf_nan=False)
    except ValueError:
        return text


class GenerationFields(TaskFields):
    """The fields that chats and completions share."""

    max_tokens: Annotated[int | None, Integer(1, limits.MAX_TOKENS)] = doc(
        "default up to the window; more than fits is clamped, unless `error_behavior` is error"
    )
    stream: field_types.Stream = doc(
        ", or true where `Accept` names text/event-stream and not "
        "application/json (setting `stream_default`)",
        default=False,
    )
    stream_options: StreamOptions | None = doc(
        "see its member",
        accepts="an object; only in a stream",
        members={
            "include_usage": FieldDoc(
                "absent: `usage` comes with the last choice's end; true: in a chunk of its own; "
                "false: not at all"
            )
        },
    )
    temperature: field_types.Temperature = doc("0 is greedy", default=1.0)
    top_p: field_types.TopP = doc("nucleus", default=1.0)
    top_k: Annotated[int | None, Integer(1, limits.MAX_TOKENS)] = doc(
        "default off; 1 is greedy, 0 is an error"
    )
    min_p: field_types.MinP = doc(", off", default=0)
    stop: field_types.Stop = None
    n: field_types.Choices = doc(
        "choices of one prompt",
        accepts="; above 1 on provisioned endpoints only (settings `max_n`, `allow_n_everywhere`)",
        default=1,
    )
    seed: field_types.Seed = doc("default drawn anew")
    presence_penalty: field_types.Penalty = None
    frequency_penalty: field_types.Penalty = None
    repetition_penalty: Annotated[float | None, Number(0, MAX_REPETITION_PENALTY, above=True)] = doc(
        "sees prompt and output", default=1.0
    )
    logit_bias: field_types.LogitBias = doc("default none")

    @property
    def choices(self) -> int:
        """The number of choices for one prompt."""
        return self.n or 1

    @property
    def include_usage(self) -> bool | None:
        """Whether a stream ends with a chunk of usage; None: the last choice's last chunk has the usage."""
        return None if self.stream_options is None else self.stream_options.include_usage

    def streams(self, target: RouteContext, endpoint: Endpoint) -> bool:
        """Whether the answer is a stream."""
        if self.stream is not None:
            return self.stream
        return endpoint.databricks.stream_default or target.accepts_events

    def check(self, endpoint: Endpoint, *, stream: bool) -> None:
        """Check combinations of fields. Raises InvalidField."""
        settings = endpoint.databricks
        if self.choices > settings.max_n:
            raise InvalidField("n", f"must be an integer from 1 to {settings.max_n}")
        if self.choices > 1 and endpoint.kind is Kind.PAY_PER_TOKEN and not settings.allow_n_everywhere:
            raise InvalidField("n", "must be 1 on a pay-per-token endpoint")
        if self.stream_options is not None and not stream:
            raise InvalidField("stream_options", "only allowed when stream is true")

    def sampling(self, max_tokens: int | None) -> SamplingParams:
        return sampling_params(
            self, seed=None if self.seed is None else self.seed % 2**64, max_tokens=max_tokens
        )
