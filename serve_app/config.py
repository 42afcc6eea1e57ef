"""Settings: the `args` of a deploy file, as frozen models. An unknown key is an error.

`EngineConfig` and `ModelConfig` describe one model deployment, `GatewayConfig`
the ingress. Everything has a default that suits a laptop; the environment is
read only for secrets and places (see `deployments/`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Settings(BaseModel):
    """Frozen, strict about names, and closed: a misspelt key is refused by name."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class EngineConfig(Settings):
    """One engine: how much it batches and how much cache it may hold."""

    max_sequences: int = Field(64, ge=1, le=4096, description="Sequences in one batch.")
    max_step_tokens: int = Field(
        2048, ge=16, le=262_144, description="Tokens computed in one step: decodes, then prefill chunks."
    )
    max_waiting: int = Field(
        256, ge=0, le=100_000, description="Requests waiting for their first step; more are refused."
    )
    block_size: int = Field(32, ge=1, le=1024, description="Tokens in one block of the KV cache.")
    kv_cache_bytes: int | None = Field(
        None, ge=2**16, description="Memory of the KV cache; none: chosen from what is free."
    )
    num_blocks: int | None = Field(None, ge=2, description="Blocks of the KV cache, instead of bytes.")
    prefix_cache: bool = Field(True, description="Keep finished prefixes for later requests.")
    max_model_len: int | None = Field(
        None, ge=2, description="Context window; none: the model's own, lowered to what the cache can hold."
    )


class ModelConfig(Settings):
    """One served model: which weights, where they run, how they are batched."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    source: str = Field(
        "", description="Local folder, hub id, or `demo:<name>`; empty: the demo model of that name."
    )
    revision: str | None = Field(None, description="Hub commit, branch or tag.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    attention: Literal["auto", "reference", "cpu", "cuda"] = "auto"
    threads: int | None = Field(None, ge=1, le=1024, description="CPU threads; none: all cores.")
    chat_template: Path | None = Field(None, description="File with the operator's own chat template.")
    engine: EngineConfig = EngineConfig()
    engine_process: bool = Field(False, description="Step the engine in a child process instead of a thread.")

    @model_validator(mode="after")
    def _demo_by_default(self) -> ModelConfig:
        if not self.source:
            object.__setattr__(self, "source", f"demo:{self.name}")
        return self


class GatewayConfig(Settings):
    """The ingress: which models it fronts, who may call it, and how much it admits."""

    models: tuple[str, ...] = Field(("demo-chat",), description="Names of the model deployments it fronts.")
    max_in_flight: int = Field(512, ge=1, description="Requests in this gateway; more are refused with 503.")
    request_timeout_s: float = Field(600.0, gt=0, le=3600, description="Longest life of one request.")
    keys_file: Path | None = Field(None, description="File with one hashed API key a line.")
    allow_remote_without_keys: bool = Field(
        False, description="Serve peers beyond loopback although no key is configured. For closed networks."
    )
