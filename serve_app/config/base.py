"""The base of all settings: frozen, closed models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

_VERSION: Final = re.compile(r"([1-9][0-9]{0,17})?")
_HOST: Final = r"[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?"
_HOST_NAME: Final = re.compile(_HOST)
_ORIGIN: Final = re.compile(rf"[a-z][a-z0-9+.-]*://({_HOST}|\[[0-9a-f:.]+\])(:[0-9]{{1,5}})?")


def _version(value: object) -> object:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value  # YAML's `2`
    if isinstance(text, str) and not _VERSION.fullmatch(text):
        raise ValueError("must be a whole number from 1, or be left out")
    return text


Version = Annotated[str, BeforeValidator(_version)]


def _host_name(text: str) -> str:
    if not _HOST_NAME.fullmatch(text.lower()):
        raise ValueError("must be the name of a host without scheme and port, as models.internal")
    return text.lower()


def _origin(text: str) -> str:
    found = _ORIGIN.fullmatch(text.lower())
    if text != "*" and found is None:
        raise ValueError('must be "*" or scheme, host and maybe port without a path, as https://app.example')
    return text.lower()


HostName = Annotated[str, AfterValidator(_host_name)]
Origin = Annotated[str, AfterValidator(_origin)]


class ConfigModel(BaseModel):
    """Frozen, strict about names, and closed: a misspelt key is refused by name."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())
    removed: ClassVar[Mapping[str, str]] = {}  # a key of an earlier version -> what its user should know

    @model_validator(mode="before")
    @classmethod
    def _refuse_removed(cls, raw: object) -> object:
        for key in cls.removed.keys() & raw.keys() if isinstance(raw, Mapping) else ():
            said = {"key": key, "why": cls.removed[key]}
            # The error has the type of unknown keys, which the check of deploy files reports by itself.
            raise PydanticCustomError("extra_forbidden", "{key}: {why}", said)
        return raw


def first_problem(error: ValidationError) -> tuple[str, str]:
    """The path of the first refused field ("" for the whole value), and what is wrong with it."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
