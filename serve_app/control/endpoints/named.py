"""Checks two names in an endpoint's settings: its guardrails' judge and its inference table.

A key that is limited to some endpoints cannot use another one by naming it in settings. The server-wide judge
is the operator's choice, and every key may use it. Names of models are not checked here: an endpoint may use
any model in `Offers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from sqlalchemy.orm import Session

from serve_app.control.endpoints import registry
from serve_app.control.keys.rules import is_administrator
from serve_app.endpoints.ai_gateway import AiGateway, Guardrails, InferenceTable
from serve_app.endpoints.endpoint import Endpoint
from serve_app.endpoints.permissions import level_of
from serve_app.errors import InvalidField
from serve_app.types import Caller

JUDGE: Final = "guardrails.model"
TABLE: Final = "inference_table_config.table_name_prefix"


class Named:
    """Checks names in settings against the existing endpoints."""

    def __init__(self, declared: Callable[[], Mapping[str, Endpoint]], guardrails_model: str | None) -> None:
        """`declared`: the endpoints of the deploy file. `guardrails_model`: the setting of the gateway."""
        self._declared = declared
        self._guardrails_model = guardrails_model

    def check(
        self, session: Session, endpoint: str, raw: dict[str, Any], caller: Caller, prefix: str = ""
    ) -> None:
        """Raises InvalidField if settings name something that does not exist or that the caller may not use.

        Raises it also if a model has to judge and none is named. `raw`: the `AiGateway` settings of
        `endpoint`. `prefix` precedes the field.
        """
        settings = AiGateway.model_validate(raw)
        if settings.guardrails is not None:
            self._check_judge(session, endpoint, settings.guardrails, caller, f"{prefix}{JUDGE}")
        if settings.inference_table_config is None or is_administrator(caller):
            return
        table = settings.inference_table_config.table(endpoint)
        for other, config in self._tables(session).items():
            if other != endpoint and table == (config or InferenceTable()).table(other):
                raise InvalidField(
                    f"{prefix}{TABLE}",
                    f"the table {'/'.join(table)} is of another endpoint, and the API key is limited to "
                    "some; choose another name",
                )

    def _check_judge(
        self, session: Session, endpoint: str, guardrails: Guardrails, caller: Caller, field: str
    ) -> None:
        try:
            guardrails.check_judge(self._guardrails_model)
        except ValueError as error:
            raise InvalidField(field, str(error)) from None
        judge = guardrails.model
        if judge is None:
            return
        exists = judge == endpoint or judge in self._declared() or registry.has(session, judge)
        if not exists or level_of(caller, judge, ()) is None:
            raise InvalidField(field, f"there is no endpoint {judge!r} that the API key may use")

    def _tables(self, session: Session) -> dict[str, InferenceTable | None]:
        made = {
            name: AiGateway.model_validate(raw).inference_table_config
            for name, raw in registry.settings(session).items()
        }
        declared = {name: each.ai_gateway.inference_table_config for name, each in self._declared().items()}
        return made | declared
