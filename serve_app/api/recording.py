"""One request and its answer on their way to an inference table.

The client never waits for this: bytes are noted as they pass, and the row is made when the request has ended.
Independent of files and formats.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from serve_app.api.backend import Payloads
from serve_app.api.context import RequestContext
from serve_app.api.guard.guard import Rules
from serve_app.api.guard.values import checked
from serve_app.api.services import Services
from serve_app.errors import ModelNotFound, PermissionDenied
from serve_app.types import Usage
from serve_app.types.payload import BodyForm, Payload

MAX_BODY_BYTES: Final = 2**20  # as Databricks has it; of a larger body only the code is kept
REQUEST_TOO_LARGE: Final = "MAX_REQUEST_SIZE_EXCEEDED"
RESPONSE_TOO_LARGE: Final = "MAX_RESPONSE_SIZE_EXCEEDED"


def record(
    services: Services, context: RequestContext, model: str, body: Callable[[], bytes], form: BodyForm
) -> None:
    """Record this request if the endpoint `model` has an inference table; otherwise `body` is not called."""
    if services.payloads is None:
        return
    try:
        endpoint, _ = services.directory.seen_by(context.caller).resolve(model, services.backend)
    except (ModelNotFound, PermissionDenied):
        return
    table = endpoint.ai_gateway.inference_table_config
    if table is None or not table.enabled:
        return
    guard = services.guards.of(endpoint)
    rules = None if guard is None else guard.input
    request = body()
    is_whole = len(request) <= MAX_BODY_BYTES
    context.recording = Recording(
        payloads=services.payloads,
        folder=table.table(endpoint.name),
        request=request if is_whole else None,
        codes=() if is_whole else (REQUEST_TOO_LARGE,),
        form=form,
        redact=None if rules is None or not rules.knows_pii else partial(_redacted, rules=rules),
        endpoint=endpoint.name,
    )


@dataclass(slots=True, kw_only=True)
class Recording:
    """What is known of one request so far."""

    payloads: Payloads
    folder: tuple[str, str, str]
    request: bytes | None
    codes: tuple[str, ...]
    form: BodyForm
    redact: Callable[[str], str] | None
    endpoint: str
    _parts: list[bytes] = field(default_factory=list)
    _size: int = 0

    def sent(self, body: bytes) -> None:
        """Take note of a part of the answer."""
        self._size += len(body)
        if self._size <= MAX_BODY_BYTES:
            self._parts.append(body)
        else:
            self._parts.clear()

    def done(self, context: RequestContext, status: int, seconds: float) -> None:
        """Make the row of the request, which has ended."""
        caller, is_whole = context.caller, self._size <= MAX_BODY_BYTES
        key_id = caller.key_id if caller is not None else ""
        self.payloads.add(
            Payload(
                folder=self.folder,
                id=context.id,
                client_id=context.client_id,
                started=time.time() - seconds,
                total_s=seconds,
                first_token_s=context.first_token_s,
                status=status,
                request=self.request,
                response=tuple(self._parts) if is_whole else None,
                form=self.form,
                redact=self.redact,
                codes=self.codes if is_whole else (*self.codes, RESPONSE_TOO_LARGE),
                endpoint=self.endpoint,
                entity=context.entity,
                route=context.route,
                key_id=key_id,
                requester=(caller.user if caller is not None else "") or key_id,
                usage=context.usage or Usage(),
            )
        )


def _redacted(body: str, rules: Rules) -> str:
    """`body` with personal data masked, in every string of its JSON."""
    try:
        value: Any = json.loads(body)
    except ValueError:
        return rules.masked(body)
    return json.dumps(checked(value, rules.masked, numbers=True), ensure_ascii=False)
