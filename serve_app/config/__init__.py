"""Settings: the `args` of a deploy file, as frozen models. An unknown key is an error.

`EngineConfig` and `ModelConfig` describe one model deployment, `GatewayConfig`
the ingress, `ControlConfig` the control plane beside it. Everything has a default that suits a laptop;
the environment is read only for secrets and places (see `deployments/`).
"""

from __future__ import annotations

from serve_app.config.base import ConfigModel, Version, first_problem
from serve_app.config.control import ControlConfig, OfferedModel
from serve_app.config.gateway import ConsoleConfig, GatewayConfig, ResponsesConfig
from serve_app.config.model import (
    WATERMARK_KEY,
    EmbeddingConfig,
    EngineConfig,
    GenerationDefaults,
    ModelConfig,
    ProvisionedConfig,
)
from serve_app.config.places import default_usage_dir, state_dir
from serve_app.config.protocols import MindieConfig, OvmsConfig, TrtllmConfig
