"""The sampling defaults that a model's makers advise (generation_config.json), and the operator's changes.

Only the fields of `GenerationDefaults` are read. `do_sample` is ignored: clients choose whether to sample at
all, by the temperature.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import ValidationError

from serve_app.config import GenerationDefaults, ModelConfig
from serve_app.models.errors import ModelLoadError
from serve_app.models.files import read_json
from serve_app.types import SamplingDefaults

FILE: Final = "generation_config.json"


def generation_defaults(folder: Path, config: ModelConfig) -> SamplingDefaults:
    """The defaults for sampling fields that clients leave out, according to the setting `generation_config`.

    Raises ModelLoadError if a value in the file is out of range.
    """
    setting = config.generation_config
    if setting == "none":
        return SamplingDefaults()
    own = setting if isinstance(setting, GenerationDefaults) else GenerationDefaults()
    found = read_json(folder / FILE)
    advised = {name: found[name] for name in GenerationDefaults.model_fields if found.get(name) is not None}
    values = {**advised, **own.model_dump(exclude_none=True)}
    try:
        valid = GenerationDefaults.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        reason = first["msg"].removeprefix("Input ")
        raise ModelLoadError(
            f"{folder / FILE}: {name} is {values[name]!r}, and it {reason}; write a value of yours as "
            f"`generation_config: {{{name}: ...}}`, or `generation_config: none`"
        ) from error
    return SamplingDefaults(
        temperature=valid.temperature,
        top_p=valid.top_p,
        top_k=None if valid.top_k is None else max(valid.top_k, 0),  # -1 also means off
        min_p=valid.min_p,
        repetition_penalty=valid.repetition_penalty,
        max_tokens=valid.max_new_tokens,
    )
