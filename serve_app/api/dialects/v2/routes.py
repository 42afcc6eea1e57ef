"""The table of routes below /v2, which Triton and MindIE share. A model's exist with and without a version.

Names of models may hold slashes, so the order matters: what ends like a longer route is that route.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from starlette.convertors import Convertor, register_url_convertor
from starlette.types import ASGIApp

from serve_app.api.dialects.family import Family
from serve_app.api.dialects.mindie import pages as mindie
from serve_app.api.dialects.triton import pages as kserve
from serve_app.api.dialects.triton.repository import IndexRoute, LoadRoute, UnloadRoute
from serve_app.api.dialects.v2.tensors import InferRoute, SharedRoute, ValuesRoute
from serve_app.api.exchange.generate import Services
from serve_app.api.pages.health import Live, Ready

Route = tuple[str, str, dict[Family, ASGIApp]]  # method, path, and the app of each protocol that has it

_POSTED: Final = ("infer", "generate", "generate_stream", "stopInfer")


class PageName(Convertor[str]):
    """The name of a model whose page is asked for: anything that is no route of another method."""

    regex = f"(?!.*/(?:{'|'.join(_POSTED)})$).+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("page", PageName())


def kserve_routes(services: Services, ready: Ready) -> Iterator[Route]:
    """All of them; `ready`: whether the server is, in MindIE's words."""

    def both(method: str, path: str, triton: ASGIApp, mindie: ASGIApp) -> Route:
        return method, path, {Family.TRITON: triton, Family.MINDIE: mindie}

    def tritons(method: str, path: str, app: ASGIApp) -> Route:
        return method, path, {Family.TRITON: app}

    yield both("GET", "/v2", kserve.ServerPage(services), mindie.ServerPage(services.config.v1_dialect))
    yield both("GET", "/v2/health/live", kserve.ServerLive(), Live())
    yield both("GET", "/v2/health/ready", kserve.ServerReady(services), ready)
    yield tritons("GET", "/v2/models/stats", kserve.AllStatsPage(services))
    yield tritons("POST", "/v2/repository/index", IndexRoute(services))
    yield tritons("POST", "/v2/repository/models/{model:path}/load", LoadRoute(services))
    yield tritons("POST", "/v2/repository/models/{model:path}/unload", UnloadRoute(services))
    for model in ("/v2/models/{model:path}/versions/{version}", "/v2/models/{model:path}"):
        for what, stream in (("generate", False), ("generate_stream", True)):
            values, shared = ValuesRoute(services, stream=stream), SharedRoute(services, stream=stream)
            yield both("POST", f"{model}/{what}", values, shared)
        yield tritons("POST", f"{model}/infer", InferRoute(services))
        yield "POST", f"{model}/stopInfer", {Family.MINDIE: mindie.StopRoute(services)}
        yield both("GET", f"{model}/ready", kserve.ModelReadyPage(services), mindie.ReadyPage(services))
        yield both("GET", f"{model}/config", kserve.ConfigPage(services), mindie.ConfigPage(services))
        yield tritons("GET", f"{model}/stats", kserve.StatsPage(services))
    for model in ("/v2/models/{model:path}/versions/{version}", "/v2/models/{model:page}"):
        yield both("GET", model, kserve.ModelPage(services), mindie.ModelPage(services))
