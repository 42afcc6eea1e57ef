"""Checks one part of a deploy file against its schema: Ray's, or that of a builder's `args`.

Ray ignores keys that it does not know, and reads some sections only when it deploys. Here, an unknown key and
a mistake in such a section are errors. Relations between the parts of a file are not checked here.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from ray.serve.config import AutoscalingConfig

from serve_app.deployments.deploy_file.problem import Place, Problem
from serve_app.endpoints.catalogue import suggestion

SHOWN: Final = 60  # characters of a wrong value that a message repeats


def unknown_keys(raw: object, schema: type[BaseModel], place: Place) -> Iterator[Problem]:
    """Problems at every level: keys without a field in `schema`, and mappings in place of lists or the
    reverse."""
    if not isinstance(raw, Mapping):
        yield place.error(
            f"must be a mapping with keys of {', '.join(schema.model_fields)}; it is {_shown(raw)}"
        )
        return
    for key, value in raw.items():
        here = place.at(str(key))
        if key not in schema.model_fields:
            removed: Mapping[str, str] = getattr(schema, "removed", {})
            yield here.error(
                removed.get(str(key)) or f"unknown key; {suggestion(str(key), schema.model_fields)}"
            )
            continue
        nested, many = _nested(schema.model_fields[key].annotation)
        if nested is None or value is None:
            continue
        if not many:
            yield from unknown_keys(value, nested, here)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                named = item.get("name") if isinstance(item, Mapping) else None
                yield from unknown_keys(item, nested, here.at(index).named(key.rstrip("s"), named))
        else:
            yield here.error(f"must be a list, each entry after a `- `; it is {_shown(value)}")


def wrong_values(raw: Mapping[str, Any], schema: type[BaseModel], place: Place) -> Iterator[Problem]:
    """Values that `schema` refuses. Unknown keys are not reported here, but by `unknown_keys`."""
    try:
        schema.model_validate(raw)
    except ValidationError as error:
        found = [
            (tuple(_followed(raw, each["loc"], each["type"])), each)
            for each in error.errors()
            if each["type"] != "extra_forbidden"
        ]
        # If both a number and a word are allowed, a wrong number should not be reported as a wrong word.
        other = {where for where, each in found if each["type"] != "string_type"}
        for where, each in found:
            if each["type"] != "string_type" or where not in other:
                yield place.at(*where).error(_sentence(each))
    except Exception as error:  # Ray's own validators raise whatever they come across
        yield place.error(f"is refused by Ray: {error}")


def wrong_scaling(raw: object, place: Place) -> Iterator[Problem]:
    """An `autoscaling_config`, which Ray reads only when it deploys."""
    if not isinstance(raw, Mapping):
        return  # said by `unknown_keys`
    yield from wrong_values({k: v for k, v in raw.items() if k != "policy"}, AutoscalingConfig, place)
    policy = raw.get("policy")
    if not isinstance(policy, Mapping) or (path := policy.get("policy_function")) is None:
        return
    found, problems = imported(path, place.at("policy", "policy_function"))
    yield from problems
    if isinstance(found, type):  # Ray makes one in its controller, which does not survive an exception
        try:
            found(**(policy.get("policy_kwargs") or {}))
        except Exception as error:
            yield place.at("policy", "policy_kwargs").error(f"is refused by {found.__name__}: {error}")


def imported(path: object, place: Place, known: Iterable[str] = ()) -> tuple[Any, list[Problem]]:
    """The object at an import path (`package.module:name`), or None and the reason why there is none.

    `known` are paths that the reason may suggest.
    """
    if not isinstance(path, str):
        return None, [place.error(f"must be an import path, package.module:name; it is {_shown(path)}")]
    hint = f"; {suggestion(path, known)}" if known else ""
    module, _, name = path.partition(":") if ":" in path else path.rpartition(".")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        return None, [place.error(f"there is no module {error.name!r}{hint}")]
    except Exception as error:  # whatever foreign code does when it is imported
        return None, [place.error(f"{path!r} cannot be imported: {error}{hint}")]
    if hasattr(found, name):
        return getattr(found, name), []
    close = difflib.get_close_matches(
        name, [public for public in vars(found) if not public.startswith("_")], n=1
    )
    hint = f"; did you mean '{module}:{close[0]}'?" if close else hint
    return None, [place.error(f"the module {module!r} has no {name!r}{hint}")]


def config_of(builder: object) -> type[BaseModel] | None:
    """The class of a builder's `args`, from the annotation that Serve uses too."""
    if not callable(builder):
        return None
    annotations = [p.annotation for p in inspect.signature(builder).parameters.values()]
    found = annotations[0] if len(annotations) == 1 else None
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None


def _nested(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The model inside an annotation, if there is one, and whether the annotation is a list of models."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    many = typing.get_origin(annotation) in (list, tuple)
    for argument in typing.get_args(annotation):
        found, inner_many = _nested(argument)
        if found is not None:
            return found, many or inner_many
    return None, False


def _followed(raw: object, location: tuple[str | int, ...], kind: str) -> Iterator[str | int]:
    """A pydantic location without the tags that pydantic inserts for the members of a union."""
    for position, part in enumerate(location):
        is_last = position == len(location) - 1
        if isinstance(raw, Mapping) and (part in raw or (is_last and kind == "missing")):
            yield part
            raw = raw.get(part)
        elif isinstance(raw, list) and isinstance(part, int) and part < len(raw):
            yield part
            raw = raw[part]


def _sentence(error: Any) -> str:
    if error["type"] == "missing":
        return "must be set"
    value = error["input"]
    if error["type"] == "string_type" and isinstance(value, int | float):
        return f"must be text; write it in quotes: '{str(value).lower()}'"
    message: str = error["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    simple = value is None or isinstance(value, str | int | float)
    return f"{message}; it is {_shown(value)}" if simple else message


def _shown(value: object) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
