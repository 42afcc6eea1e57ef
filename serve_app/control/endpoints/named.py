"""What the settings of one endpoint may name of others: the judge of its guardrails, and its inference table.

A key that is limited to endpoints gets nothing of another one by naming it. Models are no endpoints: an
endpoint may be made of whatever `Offers` has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from serve_app.control.keys.administrator import is_administrator
from serve_app.endpoints.ai_gateway import AiGateway, InferenceTable
from serve_app.endpoints.permissions import level_of
from serve_app.errors import InvalidField
from serve_app.types import Caller

JUDGE: Final = "guardrails.model"
TABLE: Final = "inference_table_config.table_name_prefix"


def check_named(
    endpoint: str,
    settings: AiGateway,
    caller: Caller,
    exists: Callable[[str], bool],
    tables: Callable[[], Mapping[str, InferenceTable | None]],
) -> None:
    """Raises InvalidField where `settings` of `endpoint` name what there is not, or what is not the caller's.

    `exists`: whether there is an endpoint of a name. `tables`: what each says of its inference table.
    """
    judge = None if settings.guardrails is None else settings.guardrails.model
    if judge is not None and (
        level_of(caller, judge, ()) is None or not (judge == endpoint or exists(judge))
    ):
        raise InvalidField(JUDGE, f"there is no endpoint {judge!r} that the API key may use")
    if settings.inference_table_config is None or is_administrator(caller):
        return
    table = settings.inference_table_config.table(endpoint)
    for other, config in tables().items():
        if other != endpoint and table == (config or InferenceTable()).table(other):
            raise InvalidField(
                TABLE,
                f"the table {'/'.join(table)} is of another endpoint, and the API key is limited to some; "
                "choose another name",
            )
