"""The settings of the ingress."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from serve_app.config.base import ConfigModel, HostName, Origin
from serve_app.config.control import ControlConfig
from serve_app.config.protocols import MindieConfig, OvmsConfig, TrtllmConfig


class ResponsesConfig(ConfigModel):
    """How responses are kept for later requests of the same key."""

    keep: bool = Field(
        True,
        description="Keep responses and their input, unless a request says `store: false`: in the control "
        "plane's database, or without a control plane in the gateway's memory. false: keep none.",
    )
    keep_days: float = Field(
        30.0, gt=0, le=366, description="Days after which a kept response is removed that no request used."
    )
    megabytes_per_key: int = Field(
        64,
        ge=16,
        le=4096,
        description="Most megabytes, compressed, that are kept for one key; the longest unused go first.",
    )

    @property
    def keep_s(self) -> float:
        return self.keep_days * 86_400.0

    @property
    def bytes_per_key(self) -> int:
        return self.megabytes_per_key * 2**20


class ConsoleConfig(ConfigModel):
    """Whether there is a console at `/console`, and how long a user stays signed in."""

    enabled: bool = Field(True, description="Answer at /console; false: its paths are no routes.")
    session_hours: float = Field(
        12.0, ge=0.1, le=720, description="Hours after which a browser must sign in again."
    )


class GatewayConfig(ConfigModel):
    """The ingress: who may call it, and how much it admits. Its endpoints are its `user_config`."""

    max_in_flight: int = Field(512, ge=1, description="Requests in this gateway; more are refused with 503.")
    request_timeout_s: float = Field(600.0, gt=0, le=3600, description="Longest life of one request.")
    sse_keepalive_s: float = Field(
        15.0,
        ge=0,
        le=3600,
        description="Seconds of silence after which a stream of events gets a comment, before its first "
        "event too: then errors are events, and `served-model-name` is left out. 0: none.",
    )
    max_tokens_over_window: Literal["clamp", "refuse"] = Field(
        "clamp",
        description="What becomes of a request for more tokens than fit after its prompt, or than "
        "`max_output_tokens`: clamp gives it what fits and says so in `X-Clamped-Fields`, refuse an error.",
    )
    restart_wait_s: float = Field(
        10.0,
        ge=0,
        le=3600,
        description="How long a request waits while all replicas that could answer restart; then 503.",
    )
    catalogue_wait_s: float = Field(
        1800.0,
        ge=0,
        le=86_400,
        description="How long a changed endpoint stays as it was while its new applications come up.",
    )
    usage_dir: Path | None = Field(
        None,
        description="Folder of the usage journal; none: $SERVE_APP_USAGE_DIR, or "
        "$XDG_STATE_HOME/serve-app/usage.",
    )
    usage_journal_days: int = Field(
        30,
        ge=1,
        le=36_500,
        description="Days after which files of the usage journal are removed that the ledger has. "
        "What it does not have stays.",
    )
    inference_tables_dir: Path | None = Field(
        None, description="Folder of inference tables; none: $XDG_STATE_HOME/serve-app/inference-tables."
    )
    inference_tables_days: int = Field(
        30, ge=1, le=36_500, description="Days after which partitions of inference tables are removed."
    )
    usage_required: bool = Field(
        False, description="Refuse requests with 503 while usage cannot be written to the disk."
    )
    grpc_port: int | None = Field(
        None, ge=1, le=65_535, description="Port of KServe v2 over gRPC, at HTTP's address; none: no gRPC."
    )
    v1_dialect: Literal["openai", "mindie"] = Field(
        "openai", description="The protocol of /v1 where neither header nor prefix names one."
    )
    pictures: Literal["note", "refuse"] = Field(
        "note",
        description="Pictures in Anthropic's messages and in responses: a note to the model replaces them, "
        "and they are listed as ignored; or they are an error.",
    )
    guardrails_model: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="Endpoint that judges safety and topics for every endpoint whose guardrails name no "
        "`model`: any that chats.",
    )
    mindie: MindieConfig = MindieConfig()
    ovms: OvmsConfig = OvmsConfig()
    trtllm: TrtllmConfig = TrtllmConfig()
    responses: ResponsesConfig = ResponsesConfig()
    control: ControlConfig = ControlConfig()
    console: ConsoleConfig = ConsoleConfig()
    keys_file: Path | None = Field(
        None, description="File with one hashed API key a line, read again when it changes."
    )
    allowed_hosts: tuple[HostName, ...] = Field(
        (),
        description="Names by which the server may be asked while it has no keys, besides names without a "
        "dot and any address: a name without a port, as `models.internal`.",
    )
    cors_origins: tuple[Origin, ...] = Field(
        (),
        description="Origins whose pages may ask this server from a browser, as `https://app.example`; "
        '"*": any origin. None: no page of another origin can.',
    )
    allow_remote_without_keys: bool = Field(
        False, description="Serve peers beyond loopback although no key is configured. For closed networks."
    )
