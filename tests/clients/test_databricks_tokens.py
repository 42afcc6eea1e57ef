"""The unmodified databricks-sdk makes, lists and ends tokens, and learns who it is."""

import asyncio

import pytest
from databricks.sdk.errors import NotFound, PermissionDenied, Unauthenticated

from serve_app.accounts.keys import new_key
from tests.clients.test_databricks_sdk import workspace
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import fake_app, served
from tests.support.run_time_keys import KeyPlane

ADMIN, LINE = new_key("ann", ["inference", "manage"])
PLAIN, PLAIN_LINE = new_key("bob")


async def test_tokens_and_the_current_user(database):
    plane = KeyPlane(database)
    app = fake_app(FakeBackend(), f"{LINE} {PLAIN_LINE}", management=plane, at_run_time=True)
    plane.gateways.append(app.state.services)
    async with served(app) as (host, port):
        url = f"http://{host}:{port}"
        w, plain = [await asyncio.to_thread(workspace, url, key) for key in (ADMIN, PLAIN)]
        assert (await asyncio.to_thread(w.current_user.me)).user_name == "ann"
        made = await asyncio.to_thread(w.tokens.create, comment="a notebook", lifetime_seconds=3600)
        mine = await asyncio.to_thread(workspace, url, made.token_value)
        assert (await asyncio.to_thread(mine.current_user.me)).user_name == "ann"
        (shown,) = await asyncio.to_thread(lambda: list(w.tokens.list()))
        assert (shown.token_id, shown.comment) == (made.token_info.token_id, "a notebook")
        assert (shown.expiry_time or 0) - (shown.creation_time or 0) == 3_600_000
        with pytest.raises(PermissionDenied):
            await asyncio.to_thread(plain.tokens.create, comment="no")
        with pytest.raises(NotFound):
            await asyncio.to_thread(w.tokens.delete, "0" * 16)
        await asyncio.to_thread(w.tokens.delete, shown.token_id)
        with pytest.raises(Unauthenticated):
            await asyncio.to_thread(mine.current_user.me)
