"""What all settings are made of: frozen, closed models, and the folder of this user's servers."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

# In the environment, before what a deploy file says or leaves out:
USAGE_DIR: Final = "SERVE_APP_USAGE_DIR"  # where a volume for all pods is mounted
DATABASE_URL: Final = "SERVE_APP_DATABASE_URL"  # of the control plane, with its password


def state_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where this user's servers keep what must outlive them: `XDG_STATE_HOME` or ~/.local/state."""
    base = environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "serve-app"


def default_usage_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where usage is written down unless `usage_dir` says otherwise."""
    given = environ.get(USAGE_DIR)
    return Path(given) if given else state_dir(environ) / "usage"


_VERSION: Final = re.compile(r"([1-9][0-9]{0,17})?")


def _version(value: object) -> object:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value  # YAML's `2`
    if isinstance(text, str) and not _VERSION.fullmatch(text):
        raise ValueError("must be a whole number from 1, or be left out")
    return text


Version = Annotated[str, BeforeValidator(_version)]


class ConfigModel(BaseModel):
    """Frozen, strict about names, and closed: a misspelt key is refused by name."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())
    removed: ClassVar[Mapping[str, str]] = {}  # a key of an earlier version -> what its user should know

    @model_validator(mode="before")
    @classmethod
    def _refuse_removed(cls, raw: object) -> object:
        for key in cls.removed.keys() & raw.keys() if isinstance(raw, Mapping) else ():
            said = {"key": key, "why": cls.removed[key]}
            # An error of the type of unknown keys: the check of deploy files reports those by itself.
            raise PydanticCustomError("extra_forbidden", "{key}: {why}", said)
        return raw
