"""The gateway's gRPC interface over a real socket in this process, and tensors for its clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from fastapi import FastAPI

from serve_app.accounts.accounts import Accounts
from serve_app.config import GatewayConfig
from serve_app.rpc.server import RpcServer
from serve_app.types import EngineStats

FINAL = "triton_final_response"
IDLE_S = 60.0
TYPES = {bool: ("BOOL", np.bool_), int: ("INT32", np.int32), float: ("FP32", np.float32)}


@asynccontextmanager
async def rpc_served(app: FastAPI, keys: str = "", host: str = "127.0.0.1") -> AsyncIterator[str]:
    """The address of a server over what `app` answers with."""
    accounts = Accounts(GatewayConfig(), {"SERVE_APP_API_KEYS": keys})
    server = RpcServer(replace(app.state.services, accounts=accounts))
    await server.start(host, 0)
    try:
        yield f"{host}:{server.port}"
    finally:
        await server.stop(5)


def tensor(name: str, values: Any, datatype: str = "INT32", dtype: Any = np.int32) -> triton.InferInput:
    array = np.asarray(values, dtype)
    found = triton.InferInput(name, list(array.shape), datatype)
    found.set_data_from_numpy(array)
    return found


def tensors(ids: list[int], output_len: int = 8, **scalars: bool | int | float) -> list[triton.InferInput]:
    """A request's tensors, every scalar of shape (1, 1)."""
    found = [tensor("input_ids", [ids]), tensor("request_output_len", [[output_len]])]
    return found + [tensor(name, [[value]], *TYPES[type(value)]) for name, value in scalars.items()]


def stop() -> list[triton.InferInput]:
    return [tensor("stop", [[True]], *TYPES[bool])]


def output_ids(result: triton.InferResult) -> list[int]:
    """The tokens of the only sequence; none where the response is empty."""
    found = result.as_numpy("output_ids")
    return [] if found is None else [int(token) for token in found[0, 0]]


def is_final(result: triton.InferResult) -> bool:
    parameter = result.get_response().parameters[FINAL]
    assert parameter.WhichOneof("parameter_choice") == "bool_param", "every response says it"
    return bool(parameter.bool_param)


async def idle(app: FastAPI) -> EngineStats:
    """The engine's numbers once it holds no sequence and no block. Raises TimeoutError."""
    async with asyncio.timeout(IDLE_S):
        while True:
            (stats,) = app.state.services.backend.stats().values()
            if not (stats.running or stats.waiting or stats.blocks_used):
                return stats
            await asyncio.sleep(0.02)
