"""The deploy file of a benchmark: one model behind HTTP on loopback."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from serve_app.config import EngineConfig, ModelConfig
from serve_app.endpoints.rules import app_name

NAME: Final = "bench"


def model_config(model: Path, dtype: str, device: str, **settings: Any) -> ModelConfig:
    """`settings` are further fields of `ModelConfig`."""
    return ModelConfig.model_validate(
        {
            "name": NAME,
            "source": str(model.resolve()),
            "dtype": dtype,
            "device": device,
            # Random weights repeat themselves when greedy, so guessing would make them faster than real ones.
            "engine": EngineConfig(max_model_len=4096, max_sequences=64, ngram_draft=0),
            **settings,
        }
    )


def resources(config: ModelConfig) -> dict[str, float]:
    return {"num_cpus": 0.5} | ({"num_gpus": 1} if config.device == "cuda" else {})


def deploy_file(config: ModelConfig, port: int) -> dict[str, object]:
    """A server of `config` behind HTTP on loopback."""
    return {
        "proxy_location": "HeadOnly",
        "http_options": {"host": "127.0.0.1", "port": port},
        "applications": [
            {
                "name": "system",
                "route_prefix": "/",
                "import_path": "serve_app.deployments.build:build_system_app",
                "deployments": [
                    {
                        "name": "Gateway",
                        "user_config": {"endpoints": [{"name": NAME}]},
                        "ray_actor_options": {"num_cpus": 0.1},
                    }
                ],
            },
            {
                "name": app_name(NAME),
                "route_prefix": None,
                "import_path": "serve_app.deployments.build:build_model_app",
                "args": config.model_dump(mode="json", exclude_defaults=True),
                "deployments": [{"name": "Model", "ray_actor_options": resources(config)}],
            },
        ],
    }
