"""Settings: the `args` of a deploy file, as frozen models. An unknown key is an error.

`EngineConfig` and `ModelConfig` describe one model deployment, `GatewayConfig`
the ingress. Everything has a default that suits a laptop; the environment is
read only for secrets and places (see `deployments/`).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, ClassVar, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from serve_app.limits import (
    MAX_BEST_OF,
    MAX_PROMPT_CHARS,
    MAX_REPETITION_PENALTY,
    MAX_TEMPERATURE,
    MAX_TOKENS,
)


def state_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where this user's servers keep what must outlive them: `XDG_STATE_HOME` or ~/.local/state."""
    base = environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "serve-app"


def default_usage_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where usage is written down unless `usage_dir` says otherwise."""
    return state_dir(environ) / "usage"


_VERSION: Final = re.compile(r"([1-9][0-9]{0,17})?")


def _version(value: object) -> object:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value  # YAML's `2`
    if isinstance(text, str) and not _VERSION.fullmatch(text):
        raise ValueError("must be a whole number from 1, or be left out")
    return text


Version = Annotated[str, BeforeValidator(_version)]


WATERMARK_KEY: Final = 15_485_863  # the millionth prime, as in the scheme's first description


class ConfigModel(BaseModel):
    """Frozen, strict about names, and closed: a misspelt key is refused by name."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())
    removed: ClassVar[Mapping[str, str]] = {}  # a key of an earlier version -> what its user should know

    @model_validator(mode="before")
    @classmethod
    def _refuse_removed(cls, raw: object) -> object:
        for key in cls.removed.keys() & raw.keys() if isinstance(raw, Mapping) else ():
            said = {"key": key, "why": cls.removed[key]}
            # An error of the type of unknown keys: the check of deploy files reports those by itself.
            raise PydanticCustomError("extra_forbidden", "{key}: {why}", said)
        return raw


class EngineConfig(ConfigModel):
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
    gpu_share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Part of a GPU's memory that weights and cache may take; none: `num_gpus`, or all.",
    )
    num_blocks: int | None = Field(None, ge=2, description="Blocks of the KV cache, instead of bytes.")
    prefix_cache: bool = Field(True, description="Keep finished prefixes for later requests.")
    max_adapters: int = Field(
        8, ge=0, le=1024, description="LoRA adapters in memory at once, of files and of clients; 0: none."
    )
    max_adapter_rank: int = Field(64, ge=1, le=1024, description="The largest rank of an adapter.")
    ngram_draft: int = Field(
        0,
        ge=0,
        le=64,
        description="Most tokens to guess ahead where a text repeats itself; answers stay the same. 0: none.",
    )
    max_model_len: int | None = Field(
        None, ge=2, description="Context window; none: the model's own, lowered to what the cache can hold."
    )
    watermark_key: int = Field(
        WATERMARK_KEY,
        ge=1,
        lt=2**64,
        description="Seed of watermarks. Whoever knows it can find watermarks, and forge them.",
    )
    logits_processors: dict[str, Annotated[str, Field(pattern=r"^[\w.]+:\w+$")]] = Field(
        {}, description="What clients may name: `package.module:factory`, loaded at the start."
    )


class ProvisionedConfig(ConfigModel):
    """Bought throughput, in tokens a second, as a number of dedicated replicas."""

    min_throughput: float = Field(
        0, ge=0, le=1e9, allow_inf_nan=False, description="Throughput for which replicas always run; 0: none."
    )
    max_throughput: float = Field(
        gt=0, le=1e9, allow_inf_nan=False, description="The most throughput that replicas are started for."
    )
    replica_throughput: float = Field(
        gt=0,
        le=1e9,
        allow_inf_nan=False,
        description="What one replica makes on your machines: `serve-app measure-throughput FILE` tells.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> ProvisionedConfig:
        if self.min_throughput > self.max_throughput:
            raise ValueError("min_throughput must not exceed max_throughput")
        return self

    @property
    def min_replicas(self) -> int:
        return math.ceil(self.min_throughput / self.replica_throughput)

    @property
    def max_replicas(self) -> int:
        return math.ceil(self.max_throughput / self.replica_throughput)


class EmbeddingConfig(ConfigModel):
    """A model that embeds: settings where the model's own files leave a choice, or say nothing."""

    pooling: Literal["auto", "cls", "mean", "max", "last"] = Field(
        "auto",
        description="How token states become a vector; auto: as its files say, else mean, or last if causal.",
    )
    normalize: bool | None = Field(None, description="Vectors of length 1; none: as its files say.")
    instruction_template: str | None = Field(
        None,
        max_length=4096,
        description="How `{instruction}` and `{input}` are joined; none: one after the other, with a space.",
    )

    @model_validator(mode="after")
    def _joins_both(self) -> EmbeddingConfig:
        template = self.instruction_template
        if template is not None and not ("{instruction}" in template and "{input}" in template):
            raise ValueError("instruction_template must hold {instruction} and {input}")
        return self


class GenerationDefaults(ConfigModel):
    """Sampling of requests that do not say how, by the names of generation_config.json. None: not given."""

    temperature: float | None = Field(
        None, ge=0, le=MAX_TEMPERATURE, allow_inf_nan=False, description="0 is greedy."
    )
    top_p: float | None = Field(None, gt=0, le=1, description="1: off.")
    top_k: int | None = Field(None, ge=-1, le=MAX_TOKENS, description="0 and -1: off; 1 is greedy.")
    min_p: float | None = Field(None, ge=0, le=1, description="0: off.")
    repetition_penalty: float | None = Field(
        None, gt=0, le=MAX_REPETITION_PENALTY, allow_inf_nan=False, description="1: off."
    )
    max_new_tokens: int | None = Field(
        None, ge=1, le=MAX_TOKENS, description="Lowered to what the window leaves."
    )


class ModelConfig(ConfigModel):
    """One served model: which weights, where they run, how they are batched."""

    removed = MappingProxyType(
        {"engine_process": "is no setting any more: the engine always steps in a thread; take the key out"}
    )

    name: Annotated[str, Field(min_length=1, max_length=256)]
    version: Version = Field("", description="Which of several versions of the model this is.")
    source: str = Field(
        "",
        description="Local folder, hub id, or `demo:<name>`; empty: the demo model of that name.",
    )
    revision: str | None = Field(None, description="Hub commit, branch or tag.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Type of the weights in memory; auto: the checkpoint's own, or one that suits the CPU.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where the model runs; auto: on a GPU with CUDA if there is one, else on the CPU."
    )
    attention: Literal["auto", "reference", "cpu", "cuda"] = Field(
        "auto",
        description="How attention is computed; auto: the fast way on the device; reference: plain torch, "
        "slow, for comparison.",
    )
    threads: int | None = Field(None, ge=1, le=1024, description="CPU threads; none: all cores.")
    max_output_tokens: int | None = Field(
        None, ge=1, description="Most tokens that one sequence may generate; none: what the window leaves."
    )
    generation_config: Literal["model", "none"] | GenerationDefaults = Field(
        "model",
        description="Sampling of requests that do not say how. model: as the model's generation_config.json "
        "says; none: as the protocol says; or values of your own, which go before those of the file.",
    )
    chat_template: Path | None = Field(None, description="File with the operator's own chat template.")
    tool_format: Literal["auto", "none", "hermes", "llama3", "mistral", "json"] = Field(
        "auto", description="How the model writes calls of tools; auto: as its chat template shows."
    )
    reasoning_format: Literal["auto", "none", "think", "magistral"] = Field(
        "auto", description="How the model marks what it thinks; auto: as its chat template shows."
    )
    compact_json: bool = Field(
        False,
        description="JSON under a grammar has no whitespace between its tokens, unless the request allows "
        "some; false: as the model writes it.",
    )
    task: Literal["auto", "generate", "embed"] = Field(
        "auto", description="What the model does; auto: as its files show."
    )
    adapters: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")], str] = Field(
        {},
        description="LoRA adapters, each asked for as `MODEL:NAME`: local folders in PEFT's layout, or "
        "`demo:NAME`.",
    )
    embedding: EmbeddingConfig = EmbeddingConfig()
    engine: EngineConfig = EngineConfig()
    provisioned: ProvisionedConfig | None = Field(
        None,
        description="Bought throughput, which sets the number of replicas.",
    )
    on_stop: Literal["move", "finish"] = Field(
        "move",
        description="A replica that Serve stops: move, its answers go on at once in other replicas with the "
        "same weights; finish, it answers what it has.",
    )
    memory_reserve: float = Field(
        0.05,
        ge=0,
        lt=1,
        description="Share of all memory that stays free: with less, new requests get 503. 0: never.",
    )

    @model_validator(mode="after")
    def _demo_by_default(self) -> ModelConfig:
        if not self.source:
            version = f"-v{self.version}" if self.version not in ("", "1") else ""
            object.__setattr__(self, "source", f"demo:{self.name}{version}")
        return self


class MindieConfig(ConfigModel):
    """Where MindIE's protocol leaves a choice, or its documents and its product differ."""

    max_input_chars: int = Field(
        512 * 1024, ge=1, le=MAX_PROMPT_CHARS, description="Most characters of all contents of a request."
    )
    allow_zero_temperature: bool = Field(
        False, description="A temperature of 0 is greedy instead of an error (chat)."
    )
    clamp_max_tokens: bool = Field(
        False, description="A limit on output above the model's own is lowered instead of an error."
    )
    do_sample_default: Literal[False, "auto"] = Field(
        False,
        description="Without `do_sample`: false, greedy; auto, drawn if a field of sampling is there.",
    )
    emit_end_token_text: bool = Field(
        True, description="The last event of a stream has the end token's own text (generate_stream)."
    )


class OvmsConfig(ConfigModel):
    """Where releases of OpenVINO Model Server differ, or we differ from them."""

    profile: Literal["source", "current"] = Field(
        "source",
        description="Defaults and bounds of the first release with this protocol (greedy, seed 0, contents "
        "are text), or of today's (temperature 1, top_k 40, seeds drawn, contents in parts, no bound with "
        "ignore_eos).",
    )
    malformed_json_status: Literal[400, 412] = Field(
        400, description="Status of a body that is not JSON; 412 is the product's own."
    )
    best_of_limit: int = Field(
        20, ge=1, le=MAX_BEST_OF, description="Most sequences that are generated for one answer."
    )

    @property
    def is_current(self) -> bool:
        return self.profile == "current"


class TrtllmConfig(ConfigModel):
    """Where TensorRT-LLM's protocol leaves a choice, or its documents and its product differ."""

    alias: str = Field(
        "tensorrt_llm",
        max_length=256,
        description="Another name of the first endpoint that generates, unless one has it; empty: none.",
    )
    ensemble: tuple[str, ...] = Field(
        ("ensemble", "tensorrt_llm_bls"),
        max_length=16,
        description="Names of the same endpoint as a model of text in and text out; none: no such model.",
    )
    preprocessing: str = Field(
        "preprocessing", max_length=256, description="Name under which its tokenizer is a model; empty: none."
    )
    postprocessing: str = Field(
        "postprocessing",
        max_length=256,
        description="Name under which its detokenizer is a model; empty: none.",
    )
    exclude_input_in_output: bool = Field(
        True,
        description="Without an `exclude_input_in_output`, an answer that is not streamed has no prompt.",
    )
    default_end_id: Literal[-1, "tokenizer"] = Field(
        -1,
        description="Without `end_id`: -1, no token ends an answer; tokenizer, the model's own do.",
    )
    logprobs: Literal["raw"] = Field(
        "raw", description="Log-probabilities are the model's own, before biases, penalties and temperature."
    )


class GatewayConfig(ConfigModel):
    """The ingress: who may call it, and how much it admits. Its endpoints are its `user_config`."""

    max_in_flight: int = Field(512, ge=1, description="Requests in this gateway; more are refused with 503.")
    request_timeout_s: float = Field(600.0, gt=0, le=3600, description="Longest life of one request.")
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
        None, description="Folder of the usage journal; none: $XDG_STATE_HOME/serve-app/usage."
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
    mindie: MindieConfig = MindieConfig()
    ovms: OvmsConfig = OvmsConfig()
    trtllm: TrtllmConfig = TrtllmConfig()
    keys_file: Path | None = Field(
        None, description="File with one hashed API key a line, read again when it changes."
    )
    allow_remote_without_keys: bool = Field(
        False, description="Serve peers beyond loopback although no key is configured. For closed networks."
    )
