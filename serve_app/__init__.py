"""A self-hosted foundation-model server on Ray Serve.

Everything that an operator's Python code needs can be imported from here:

    from ray import serve
    from serve_app import Client, Endpoint, ModelConfig, app_name, model_app, system_app

    model = ModelConfig(name="demo-chat")
    serve.run(model_app(model), name=app_name("demo-chat"), route_prefix=None)
    serve.run(system_app([Endpoint(name="demo-chat")]), name="system")
    print(Client("demo-chat").generate(messages=[{"role": "user", "content": "Hello!"}]).text)

Names are loaded when they are first used (PEP 562): `import serve_app` alone loads neither Ray
nor a model.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from serve_app.openmp import look_briefly

if TYPE_CHECKING:
    from serve_app.config import EngineConfig, GatewayConfig, ModelConfig, ProvisionedConfig
    from serve_app.deployments.build import (
        build_model_app,
        build_system_app,
        gateway_deployment,
        model_app,
        system_app,
    )
    from serve_app.deployments.client import Answer, AsyncClient, Client
    from serve_app.deployments.model.deployment import model_deployment
    from serve_app.endpoints.catalogue import Catalogue
    from serve_app.endpoints.endpoint import Endpoint, ServedEntity
    from serve_app.endpoints.rules import app_name
    from serve_app.types import (
        Beam,
        DetectRequest,
        DetokenizeRequest,
        EmbedRequest,
        GenerateRequest,
        Grammar,
        GrammarKind,
        SamplingParams,
        TokenizeRequest,
        ToolChoice,
    )

__version__ = "0.1.0"

look_briefly()  # here, because every module that loads torch comes after this one

__all__ = [
    "Answer",
    "AsyncClient",
    "Beam",
    "Catalogue",
    "Client",
    "DetectRequest",
    "DetokenizeRequest",
    "EmbedRequest",
    "Endpoint",
    "EngineConfig",
    "GatewayConfig",
    "GenerateRequest",
    "Grammar",
    "GrammarKind",
    "ModelConfig",
    "ProvisionedConfig",
    "SamplingParams",
    "ServedEntity",
    "TokenizeRequest",
    "ToolChoice",
    "app_name",
    "build_model_app",
    "build_system_app",
    "gateway_deployment",
    "model_app",
    "model_deployment",
    "system_app",
]

_HOME: Final = {
    "config": ("EngineConfig", "GatewayConfig", "ModelConfig", "ProvisionedConfig"),
    "deployments.build": (
        "build_model_app",
        "build_system_app",
        "gateway_deployment",
        "model_app",
        "system_app",
    ),
    "deployments.model.deployment": ("model_deployment",),
    "deployments.client": ("Answer", "AsyncClient", "Client"),
    "endpoints.catalogue": ("Catalogue",),
    "endpoints.endpoint": ("Endpoint", "ServedEntity"),
    "endpoints.rules": ("app_name",),
    "types": (
        "Beam",
        "DetectRequest",
        "DetokenizeRequest",
        "EmbedRequest",
        "GenerateRequest",
        "Grammar",
        "GrammarKind",
        "SamplingParams",
        "TokenizeRequest",
        "ToolChoice",
    ),
}
_MODULES: Final = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    """The value of a name in `__all__`, from the module that defines it."""
    if name not in _MODULES:
        raise AttributeError(f"module 'serve_app' has no attribute {name!r}")
    return getattr(importlib.import_module(f"serve_app.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
