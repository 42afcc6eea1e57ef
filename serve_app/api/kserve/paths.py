"""The paths below /v2 that name a model, with and without a version of it.

Names of models may hold slashes, so the order of a table matters: a longer route comes first.
"""

from __future__ import annotations

from typing import Final

from starlette.convertors import Convertor, register_url_convertor

_VERSIONED: Final = "/v2/models/{model:path}/versions/{version}"
MODELS: Final = (_VERSIONED, "/v2/models/{model:path}")  # below which a model's other routes lie
PAGES: Final = (_VERSIONED, "/v2/models/{model:page}")  # of a model itself

_POSTED: Final = ("infer", "generate", "generate_stream", "stopInfer")


class PageName(Convertor[str]):
    """The name of a model whose page is asked for: anything that is no route of another method."""

    regex = f"(?!.*/(?:{'|'.join(_POSTED)})$).+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("page", PageName())
