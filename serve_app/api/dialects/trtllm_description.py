"""The tensors of TensorRT-LLM as metadata lists them: all of them, whatever the model."""

from __future__ import annotations

from typing import Final

from serve_app.api.dialects.trtllm_inputs import INPUTS
from serve_app.api.dialects.trtllm_outputs import OUTPUTS
from serve_app.api.kserve.description import TensorShape
from serve_app.types import ModelInfo

INPUT_SHAPES: Final = tuple(
    TensorShape(each.name, each.datatype, (-1, *each.shape), is_optional=not each.required)
    for each in INPUTS.values()
)
OUTPUT_SHAPES: Final = tuple(TensorShape(name, each.datatype, each.shape) for name, each in OUTPUTS.items())


def config_parameters(info: ModelInfo | None) -> dict[str, object]:
    """What a model's configuration tells of it beyond its tensors; nothing while it is not known."""
    if info is None:
        return {}
    return {
        "max_seq_len": info.context_window,
        "max_output_len": info.max_output_tokens or info.context_window,
        "vocab_size": info.vocab_size,
        "eos_token_ids": ",".join(map(str, info.eos_token_ids)),
        "pad_token_id": "" if info.pad_token_id is None else info.pad_token_id,
    }
