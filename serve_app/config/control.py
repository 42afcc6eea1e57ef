"""The settings of the control plane: endpoints, keys and usage at run time."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from serve_app.config.base import ConfigModel
from serve_app.config.model import ModelConfig


class OfferedModel(ConfigModel):
    """A model from which endpoints may be created at run time, and the resources of one replica."""

    config: ModelConfig
    num_cpus: float = Field(0.5, ge=0, le=1024, description="CPUs that Ray sets aside for a replica.")
    num_gpus: float = Field(0, ge=0, le=64, description="GPUs, or a part of one, for a replica.")
    placement_group_bundles: tuple[dict[str, float], ...] = Field(
        (),
        max_length=1024,
        description="As of a deployment: what Ray sets aside on each machine of a replica with "
        "several ranks. `num_cpus` and `num_gpus` are those of its first rank then.",
    )
    placement_group_strategy: Literal["", "PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = Field(
        "", description="As of a deployment: which bundles share a machine."
    )
    replica_throughput: float | None = Field(
        None,
        gt=0,
        le=1e9,
        allow_inf_nan=False,
        description="Tokens a second of one replica; none: `replica_throughput` of `control`.",
    )


class ControlConfig(ConfigModel):
    """The control plane: whether it runs, where it keeps its data, and which endpoints it can create."""

    enabled: bool = Field(True, description="Take changes at run time, by `/api/2.0` and the command line.")
    database_url: str | None = Field(
        None,
        min_length=1,
        max_length=4096,
        description="SQLAlchemy's URL, as `postgresql+pg8000://...`; none: SQLite, the file control.db in "
        "`usage_dir` where that is set, else in $XDG_STATE_HOME/serve-app. A password is better in the "
        "environment: $SERVE_APP_DATABASE_URL goes before this.",
    )
    models: tuple[OfferedModel, ...] = Field(
        (),
        max_length=1000,
        description="Models that endpoints may be made of, besides those of the deploy file and the demos.",
    )
    replica_throughput: float = Field(
        1000.0,
        gt=0,
        le=1e9,
        allow_inf_nan=False,
        description="Tokens a second of one replica of a model for which nothing else says it.",
    )
    max_replicas: int = Field(32, ge=1, le=10_000, description="Most replicas of one served entity.")
    check_resources: bool = Field(
        True,
        description="Refuse what the cluster has no room for now; false where it grows by itself.",
    )
    start_timeout_s: float = Field(
        1800.0, gt=0, le=86_400, description="How long a new configuration may take to come up."
    )

    usage_days: int = Field(
        366,
        ge=32,
        le=36_500,
        description="Days after which rows of the usage ledger, and feedback, are removed.",
    )
    max_snapshot_age_s: float = Field(
        3600.0,
        ge=30,
        le=366 * 86_400,
        description="How long a gateway takes keys that were made at run time without a word of the control "
        "plane; then 503 until it answers. So long may a revoked key live in a gateway that is cut off.",
    )

    @model_validator(mode="after")
    def _names_are_unique(self) -> ControlConfig:
        names = [(each.config.name, each.config.version) for each in self.models]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"models: {twice[0][0]!r} version {twice[0][1] or 'none'} is there twice")
        return self
