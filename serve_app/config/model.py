"""The settings of one model: which weights, where they run, how they are batched."""

from __future__ import annotations

import math
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from serve_app.config.base import ConfigModel, Version
from serve_app.config.quantization import CPU, FORMATS, GPU
from serve_app.limits import MAX_REPETITION_PENALTY, MAX_TEMPERATURE, MAX_TOKENS

WATERMARK_KEY: Final = 15_485_863  # the millionth prime, as in the scheme's first description

EXACT_BLOCK_SIZES: Final = (16, 32, 64)  # tests show that with these, answers do not depend on the batch


class EngineConfig(ConfigModel):
    """One engine: how much it batches and how much cache it may hold."""

    max_sequences: int = Field(64, ge=1, le=4096, description="Sequences in one batch.")
    max_step_tokens: int = Field(
        2048, ge=16, le=262_144, description="Tokens computed in one step: decodes, then prefill chunks."
    )
    max_waiting: int = Field(
        256, ge=0, le=100_000, description="Requests waiting for their first step; more are refused."
    )
    block_size: int = Field(
        32, ge=1, le=1024, description="Tokens in one block of the KV cache: 16, 32 or 64."
    )
    kv_cache_dtype: Literal["auto", "int8", "fp8"] = Field(
        "auto",
        description="How the KV cache keeps keys and values. auto: in the type of the weights; int8: in a "
        "little more than half the bytes of bfloat16, with answers near those; fp8: in as many bytes, on a "
        "GPU alone, with answers less near.",
    )
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
    cuda_graphs: bool = Field(
        True, description="Record small steps as CUDA graphs at the start, where `attention` is triton."
    )
    overlap: bool | None = Field(
        None, description="Prepare a step while the one before it runs; none: on a GPU."
    )
    prefix_cache: bool = Field(True, description="Keep finished prefixes for later requests.")
    max_adapters: int = Field(
        8, ge=0, le=1024, description="LoRA adapters in memory at once, of files and of clients; 0: none."
    )
    max_adapter_rank: int = Field(64, ge=1, le=1024, description="The largest rank of an adapter.")
    ngram_draft: Literal["auto"] | Annotated[int, Field(ge=0, le=64)] | None = Field(
        None,
        description="Most tokens to guess ahead where a text repeats itself; answers stay the same. "
        "0: none; auto: as many as pay by the engine's own measurements; none: auto, but 0 with `overlap`.",
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
    """Bought throughput, in tokens per second, converted to a number of dedicated replicas."""

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
        description="Tokens a second of one replica: `serve-app measure-throughput FILE` measures it.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> ProvisionedConfig:
        if self.min_throughput > self.max_throughput:
            raise ValueError("min_throughput must not exceed max_throughput")
        return self

    @property
    def min_replicas(self) -> int:
        return replicas_for(self.min_throughput, self.replica_throughput)

    @property
    def max_replicas(self) -> int:
        return replicas_for(self.max_throughput, self.replica_throughput)


def replicas_for(throughput: float, of_one: float) -> int:
    """The fewest replicas that reach `throughput`, if each has a throughput of `of_one`."""
    number = throughput / of_one
    nearest = round(number)  # 153 are fifteen times 10.2, though not in floats
    return nearest if math.isclose(number, nearest) else math.ceil(number)


class EmbeddingConfig(ConfigModel):
    """Settings of an embedding model, where the model's own files leave a choice or say nothing."""

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
    """Sampling parameters that requests leave out, named as in generation_config.json. None: not given."""

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

    name: Annotated[str, Field(min_length=1, max_length=256, description="What endpoints call the model.")]
    version: Version = Field("", description="Which of several versions of the model this is.")
    source: str = Field(
        "",
        description="Local folder, GGUF file, hub id (of a GGUF file `owner/name:Q4_K_M`), or `demo:<name>`; "
        "empty: the demo model of that name.",
    )
    revision: str | None = Field(None, description="Hub commit, branch or tag.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Type of the weights in memory; auto: the checkpoint's own, or one that suits the CPU.",
    )
    quantization: Literal["none", "int8", "int4", "fp8"] = Field(
        "none",
        description="Weights of linear layers in fewer bits, made at the start; for models that generate. "
        "int8: half the bytes of bfloat16, and answers near those. int4: a third, and answers that change "
        "more. fp8: as many bytes as int8, on a GPU alone.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where the model runs; auto: on a GPU with CUDA if there is one, else on the CPU."
    )
    attention: Literal["auto", "reference", "cpu", "cuda", "triton"] = Field(
        "auto",
        description="How attention is computed. auto: the usual way on a CPU; on a GPU triton, if a trial "
        "in a process of its own gives plain torch's results there, else cuda. cuda: plain torch. triton: "
        "kernels of our own for attention and fused layers. reference: slow, for comparison.",
    )
    tensor_parallel: int = Field(
        1,
        ge=1,
        le=64,
        description="Ranks that share one replica's model, each with a part of every layer: on as many GPUs "
        "of one machine (`num_gpus`) or of several (`placement_group_bundles`), or as processes on CPUs.",
    )
    pipeline_parallel: int = Field(
        1,
        ge=1,
        le=64,
        description="Stages of one replica's model, each with some of the layers; a step passes through them "
        "in turn. Every stage has `tensor_parallel` ranks.",
    )
    expert_parallel: bool = Field(
        False,
        description="Each rank of `tensor_parallel` has some of a mixture's experts whole; false: a part of "
        "every expert.",
    )
    threads: int | None = Field(
        None, ge=1, le=1024, description="CPU threads, of each rank; none: all cores, divided among ranks."
    )
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
    def _quantized_where_it_can_be(self) -> ModelConfig:
        if self.quantization == "none":
            return self
        size = FORMATS[self.quantization]
        for field, wrong in (
            ("device", {CPU, GPU} - size.devices),
            ("attention", {"reference", "cuda", *({"cpu"} - size.devices)}),
            ("task", {"embed"}),
        ):
            if (value := getattr(self, field)) in wrong:
                raise ValueError(
                    f"quantization {self.quantization} is for models that generate on {size.where}, not with "
                    f"{field}: {value}; take one of the two out"
                )
        return self

    @model_validator(mode="after")
    def _of_exact_blocks(self) -> ModelConfig:
        """Allow only block sizes with which kernels sum keys in the same order however a prompt was cut."""
        if self.engine.block_size not in EXACT_BLOCK_SIZES:
            raise ValueError(
                f"engine.block_size must be 16, 32 or 64, not {self.engine.block_size}: with others a "
                "request's tokens depend on what is computed beside it"
            )
        return self

    @model_validator(mode="after")
    def _cached_where_there_is_a_cache(self) -> ModelConfig:
        if self.task == "embed" and self.engine.kv_cache_dtype != "auto":
            raise ValueError(
                f"engine.kv_cache_dtype {self.engine.kv_cache_dtype} is for models that generate, not with "
                "task: embed, which has no cache; take one of the two out"
            )
        return self

    @property
    def ranks(self) -> int:
        """The processes, or GPUs, that share the model of one replica."""
        return self.tensor_parallel * self.pipeline_parallel

    def stage_of(self, rank: int) -> int:
        """The stage of a rank, from 0. The first ranks are those of the last stage: rank 0 samples."""
        return self.pipeline_parallel - 1 - rank // self.tensor_parallel

    @property
    def divided_by(self) -> str:
        """The setting that divides the model among ranks; the first one if both do."""
        return "tensor_parallel" if self.tensor_parallel > 1 else "pipeline_parallel"

    @model_validator(mode="after")
    def _divided_where_it_can_be(self) -> ModelConfig:
        if self.tensor_parallel == 1 and self.expert_parallel:
            raise ValueError("expert_parallel is for models with tensor_parallel; take it out")
        if self.ranks == 1:
            return self
        if self.task == "embed":
            raise ValueError(f"{self.divided_by} is for models that generate, not with task: embed")
        if self.engine.gpu_share is not None:
            raise ValueError(
                f"{self.divided_by} takes whole GPUs, not with engine.gpu_share; take one of the two out"
            )
        if self.pipeline_parallel > 1 and self.engine.overlap:
            raise ValueError(
                "engine.overlap prepares steps ahead on one device, and pipeline_parallel has steps in all "
                "of its stages; take one of the two out"
            )
        return self

    @model_validator(mode="after")
    def _cached_as_the_device_can(self) -> ModelConfig:
        if self.engine.kv_cache_dtype == "fp8":
            for field in ("device", "attention"):
                if getattr(self, field) == CPU:
                    raise ValueError(
                        f"engine.kv_cache_dtype fp8 is for a GPU, not with {field}: cpu; int8 is for both"
                    )
        return self

    @model_validator(mode="after")
    def _demo_by_default(self) -> ModelConfig:
        if not self.source:
            version = f"-v{self.version}" if self.version not in ("", "1") else ""
            object.__setattr__(self, "source", f"demo:{self.name}{version}")
        return self
