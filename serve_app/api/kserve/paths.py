"""The paths below /v2 that name a model, with or without a version.

Names of models may contain slashes, so the order of the table matters: longer routes come first.
"""

from __future__ import annotations

from typing import Final

from starlette.convertors import Convertor, register_url_convertor

_VERSIONED: Final = "/v2/models/{model:path}/versions/{version}"
MODELS: Final = (_VERSIONED, "/v2/models/{model:path}")  # below which a model's other routes lie
PAGES: Final = (_VERSIONED, "/v2/models/{model:page}")  # of a model itself

_POSTED: Final = ("infer", "generate", "generate_stream", "stopInfer")


class PageName(Convertor[str]):
    """A model's name in the path of its page; a path that belongs to a POST route does not match."""

    regex = f"(?!.*/(?:{'|'.join(_POSTED)})$).+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("page", PageName())
