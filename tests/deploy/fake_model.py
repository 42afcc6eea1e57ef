"""A model application without a model, for deploy files: answers at a fixed pace and says who answers."""

# No `from __future__ import annotations`: Serve reads the type of `config` from the builder itself.
import os
from collections.abc import Callable

from msgspec import structs
from ray.serve import Application

from serve_app.config import ModelConfig
from serve_app.deployments.model.deployment import model_deployment
from serve_app.types import GenerateRequest, TokenDelta
from tests.support.fake_server import FakeServer

IMPORT_PATH = "tests.deploy.fake_model:build_fake_model_app"


class SignedServer(FakeServer):
    """The text of every token is the process id of the replica, and a space."""

    async def generate(self, request: GenerateRequest, sink) -> None:  # type: ignore[no-untyped-def]
        await super().generate(request, _Signed(sink.send))

    @classmethod
    async def start(cls, config: ModelConfig, progress: Callable[[str], None]) -> "SignedServer":
        return cls(config)


class _Signed:
    def __init__(self, send: Callable[[list[TokenDelta]], None]) -> None:
        self._send = send

    def send(self, deltas: list[TokenDelta]) -> None:
        self._send([structs.replace(delta, text=f"{os.getpid()} ") for delta in deltas])


def build_fake_model_app(config: ModelConfig) -> Application:
    """As `build_model_app`."""
    return model_deployment(config).bind(config, SignedServer.start)
