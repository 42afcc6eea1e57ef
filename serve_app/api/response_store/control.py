"""Responses kept by the control plane, so that every gateway has them, even one that starts later."""

from __future__ import annotations

from collections.abc import Sequence

from serve_app.api.backend import Management
from serve_app.types import Caller
from serve_app.types.control import ForgetResponse, KeepResponse, KeptResponse, RecallResponses


class ResponsesOfControlPlane:
    """An `api.backend.ResponseStore`."""

    def __init__(self, management: Management) -> None:
        self._management = management

    async def keep(self, response: KeptResponse, caller: Caller) -> None:
        await self._management.do(KeepResponse(response=response), caller)

    async def recall(self, ids: Sequence[str], last: str, caller: Caller) -> dict[str, KeptResponse]:
        found = await self._management.do(RecallResponses(ids=tuple(ids), last=last), caller)
        return {each.id: each for each in found.responses}

    async def forget(self, id: str, caller: Caller) -> bool:
        return (await self._management.do(ForgetResponse(id=id), caller)).found
