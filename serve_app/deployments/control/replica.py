"""The control plane as a Serve deployment: it has one replica, which alone opens the database.

Its calls take and return msgpack bytes of `serve_app.types.control`. Nothing here waits for the database or
for Ray on the event loop. The replica is up before the database is, and meanwhile refuses commands.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Final

import msgspec
from ray import serve

from serve_app.channel.calls import decode_command, encode_reply
from serve_app.channel.frames import Refused
from serve_app.config import GatewayConfig
from serve_app.config.places import DATABASE_URL, database_folder, database_url
from serve_app.control.database.database import Database
from serve_app.control.plane import ControlPlane
from serve_app.deployments.control.cluster import RayCluster
from serve_app.deployments.logs import log_as_json, to_terminal
from serve_app.deployments.memory import be_spared
from serve_app.deployments.replica_port import keep_private
from serve_app.errors import GenerationFailed, ServeError, UnsupportedField
from serve_app.heap import settle

logger = logging.getLogger(__name__)

BROKEN: Final = GenerationFailed("the control plane failed; its log says why")
UNKNOWN: Final = UnsupportedField(None, "the control plane does not know this command")


class ControlReplica:
    """Executes the commands of gateways. There is exactly one replica, since only one process may write."""

    async def __init__(self, config: GatewayConfig) -> None:  # type: ignore[misc]  # Serve awaits it
        log_as_json()
        be_spared()
        keep_private()
        self._cluster = RayCluster(str(serve.get_replica_context().app_name))
        database = Database(prepared_database(config))
        self._plane = ControlPlane(
            database,
            self._cluster,
            config.control,
            config.responses,
            say=to_terminal,
            guardrails_model=config.guardrails_model,
        )
        self._plane.start()
        self._open: set[asyncio.Task[bytes]] = set()
        settle()

    async def do(self, payload: bytes) -> bytes:
        """The reply to a command. A command runs to its end even if its caller is gone."""
        task = asyncio.ensure_future(self._do(payload))
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        return await asyncio.shield(task)

    async def _do(self, payload: bytes) -> bytes:
        try:
            command, caller = decode_command(payload)
        except msgspec.DecodeError:  # from a gateway of another version
            logger.exception("a command is not understood")
            return encode_reply(Refused(UNKNOWN.info()))
        try:
            return encode_reply(await self._plane.do(command, caller))
        except ServeError as error:
            return encode_reply(Refused(error.info()))
        except Exception:
            logger.exception("%s failed", type(command).__name__)
            return encode_reply(Refused(BROKEN.info()))

    async def check_health(self) -> None:
        """Serve replaces the replica if this raises an exception."""
        if self._plane.is_broken:
            raise RuntimeError("the control plane has stopped; its log says why")

    async def __del__(self) -> None:
        if hasattr(self, "_plane"):  # unless the constructor failed
            await self._plane.close()
            self._cluster.close()


def prepared_database(config: GatewayConfig) -> str:
    """The database URL of a gateway's control plane. If it is this user's file, its folder is created."""
    if not (os.environ.get(DATABASE_URL) or config.control.database_url):
        try:
            database_folder(config.usage_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:  # serving works without a database, which may appear later
            logger.warning("there is no folder for the database: %s", error)
    return database_url(config.control.database_url, config.usage_dir)
