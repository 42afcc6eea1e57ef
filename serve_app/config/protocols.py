"""Settings for the choices that a protocol leaves open."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from serve_app.config.base import ConfigModel
from serve_app.limits import MAX_BEST_OF, MAX_PROMPT_CHARS


class MindieConfig(ConfigModel):
    """Settings for points that MindIE's protocol leaves open, or on which its sources differ."""

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
    repetition_penalty_scope: Literal["all", "generated"] = Field(
        "all",
        description="Tokens that `repetition_penalty` sees (generate, generate_stream): with those of the "
        "prompt, as is usual; or generated ones alone, as the document says.",
    )


class OvmsConfig(ConfigModel):
    """Settings for points in which releases of OpenVINO Model Server differ, or we differ from them."""

    profile: Literal["source", "current"] = Field(
        "source",
        description="Defaults and bounds of the first release with this protocol (greedy, seed 0), or of "
        "today's (temperature 1, top_k 40, seeds drawn, no bound with ignore_eos).",
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
    """Settings for points that TensorRT-LLM's protocol leaves open, or on which its sources differ."""

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
