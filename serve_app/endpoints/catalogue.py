"""All endpoints of a gateway, read as a whole from its `user_config`: an invalid one changes nothing."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pydantic import Field, ValidationError, model_validator

from serve_app.config import ConfigModel
from serve_app.endpoints.endpoint import Databricks, Endpoint, Kind, Limits, Price, ServedEntity, Task

MAX_PROBLEMS: Final = 20  # named in one message
MAX_ENDPOINTS: Final = 10_000  # of one gateway, declared and made at run time

_OWNERS: Final[Mapping[str, type[ConfigModel]]] = {
    "endpoints": Endpoint,
    "served_entities": ServedEntity,
    "limits": Limits,
    "price": Price,
    "databricks": Databricks,
}


class CatalogueError(ValueError):
    """The catalogue is wrong; each problem names its field and says what to write instead."""

    def __init__(self, problems: list[str]) -> None:
        more = [f"... and {len(problems) - MAX_PROBLEMS} more"] if len(problems) > MAX_PROBLEMS else []
        super().__init__("\n".join(problems[:MAX_PROBLEMS] + more))
        self.problems = problems

    def __reduce__(self) -> tuple[type[CatalogueError], tuple[list[str]]]:
        return CatalogueError, (self.problems,)


class Catalogue(ConfigModel):
    """The endpoints, each under its own name."""

    endpoints: tuple[Endpoint, ...] = Field((), max_length=MAX_ENDPOINTS)

    @model_validator(mode="after")
    def _agrees(self) -> Catalogue:
        counts = Counter(endpoint.name for endpoint in self.endpoints)
        twice = sorted(name for name, count in counts.items() if count > 1)
        if twice:
            raise ValueError(f"endpoints: {twice[0]!r} is there twice; an endpoint's name is unique")
        users: dict[str, list[tuple[Endpoint, ServedEntity]]] = {}
        for endpoint in self.endpoints:
            for entity in endpoint.served_entities:
                users.setdefault(entity.app, []).append((endpoint, entity))
        for app, uses in users.items():
            check_app(app, uses)
        return self

    @property
    def apps(self) -> tuple[str, ...]:
        """The Serve applications of all entities, each once, in order of appearance."""
        return tuple(dict.fromkeys(e.app for endpoint in self.endpoints for e in endpoint.served_entities))

    def dump(self) -> dict[str, Any]:
        """As a `user_config`: plain values, without defaults."""
        return self.model_dump(mode="json", exclude_defaults=True)


def parse_catalogue(raw: Mapping[str, Any]) -> Catalogue:
    """The catalogue that `raw` describes. Raises CatalogueError with every problem found."""
    try:
        return Catalogue.model_validate(raw)
    except ValidationError as error:
        raise CatalogueError([_problem(raw, each) for each in error.errors(include_input=False)]) from None


def field_path(location: Iterable[str | int]) -> str:
    """A pydantic location as people write it: `endpoints[1].traffic.a`."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def suggestion(key: str, known: Iterable[str]) -> str:
    """A hint that names the key that was probably meant."""
    known = list(known)
    close = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"


def _problem(raw: Mapping[str, Any], error: Any) -> str:
    location: tuple[str | int, ...] = error["loc"]
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        message = f"unknown key; {suggestion(str(location[-1]), _known_keys(location))}"
    named = _endpoint_name(raw, location)
    path = field_path(location)
    return f"{path}{named}: {message}" if path else message


def _known_keys(location: tuple[str | int, ...]) -> list[str]:
    words = [part for part in location[:-1] if isinstance(part, str)]
    owner = _OWNERS.get(words[-1], Endpoint) if words else Catalogue
    return list(owner.model_fields)


def _endpoint_name(raw: Mapping[str, Any], location: tuple[str | int, ...]) -> str:
    """Adds the name beside the index, because entries of a file are hard to count."""
    try:
        name = raw["endpoints"][location[1]]["name"] if location[0] == "endpoints" else None
    except (LookupError, TypeError):
        return ""
    return f" (endpoint {name!r})" if isinstance(name, str) else ""


def check_app(app: str, uses: Sequence[tuple[Endpoint, ServedEntity]]) -> None:
    """Raises ValueError unless these entities can all use the application."""
    first, entity = uses[0]
    for other, another in uses[1:]:
        if Kind.PROVISIONED in (first.kind, other.kind):
            raise ValueError(
                f"endpoints: {first.name!r} and {other.name!r} both use the application {app!r}; "
                "bought throughput needs an application of its own (set `app`)"
            )
        if (entity.model, entity.version) != (another.model, another.version):
            raise ValueError(
                f"endpoints: the application {app!r} serves {entity.model!r} {entity.version!r} for "
                f"{first.name!r} and {another.model!r} {another.version!r} for {other.name!r}"
            )


def check_judges(catalogue: Catalogue, guardrails_model: str | None) -> None:
    """Raises CatalogueError for all endpoints whose rules need a judging model although none is named.

    `guardrails_model`: the setting of the gateway.
    """
    problems = []
    for index, endpoint in enumerate(catalogue.endpoints):
        guardrails = endpoint.ai_gateway.guardrails
        try:
            if guardrails is not None:
                guardrails.check_judge(guardrails_model)
        except ValueError as error:
            field = f"endpoints[{index}].ai_gateway.guardrails.model"
            problems.append(f"{field} (endpoint {endpoint.name!r}): {error}")
    if problems:
        raise CatalogueError(problems)


def judging(name: str, endpoint: Endpoint | None) -> Endpoint:
    """`endpoint`, after a check that it can judge. None means that no endpoint is called `name`.

    Raises ValueError with the reason if it cannot judge.
    """
    if endpoint is None:
        raise ValueError(f"there is no endpoint {name!r}, so it can judge nothing")
    if endpoint.task is not Task.CHAT:
        raise ValueError(f"the endpoint {name!r} cannot judge: its task is {endpoint.task}, not {Task.CHAT}")
    return endpoint
