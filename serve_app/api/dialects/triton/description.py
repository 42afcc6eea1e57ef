"""The tensors that metadata lists for each role of a name. They are the same for every model."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from serve_app.api.dialects.triton.answer.output_table import ENSEMBLE_OUTPUTS, OUTPUTS, Output
from serve_app.api.dialects.triton.ensemble import postprocessing as post
from serve_app.api.dialects.triton.ensemble import preprocessing as pre
from serve_app.api.dialects.triton.metadata import TensorShape
from serve_app.api.dialects.triton.request.inputs import INPUTS, RENAMED, TEXTS, Input
from serve_app.api.dialects.triton.role import Role
from serve_app.config import TrtllmConfig
from serve_app.types import ModelInfo

# Inputs of token ids, or about token ids. An ensemble has texts instead.
_OF_TOKENS: Final = frozenset(
    {"input_ids", "input_lengths", "bad_words_list", "stop_words_list", "embedding_bias"}
    | {"decoder_input_ids", "decoder_input_lengths", "prompt_table_extra_ids", *RENAMED.values()}
)
_ENSEMBLE: Final = (
    *TEXTS.items(),
    *((name, INPUTS[own]) for name, own in RENAMED.items()),
    *((name, each) for name, each in INPUTS.items() if name not in _OF_TOKENS),
)

Shapes = tuple[tuple[TensorShape, ...], tuple[TensorShape, ...]]  # inputs, outputs


def _inputs(named: Mapping[str, Input]) -> tuple[TensorShape, ...]:
    return tuple(
        TensorShape(name, each.datatype, (-1, *each.shape), is_optional=not each.required)
        for name, each in named.items()
    )


def _outputs(named: Mapping[str, Output]) -> tuple[TensorShape, ...]:
    return tuple(TensorShape(name, each.datatype, each.shape) for name, each in named.items())


SHAPES: Final[Mapping[Role, Shapes]] = MappingProxyType(
    {
        Role.TENSORS: (_inputs(INPUTS), _outputs(OUTPUTS)),
        Role.ENSEMBLE: (_inputs(dict(_ENSEMBLE)), _outputs(ENSEMBLE_OUTPUTS)),
        Role.PREPROCESSING: (_inputs(pre.INPUTS), _outputs(pre.OUTPUTS)),
        Role.POSTPROCESSING: (_inputs(post.INPUTS), _outputs(post.OUTPUTS)),
    }
)


def config_parameters(info: ModelInfo | None, config: TrtllmConfig) -> dict[str, object]:
    """The parameters of a configuration. There are few while the model is not known."""
    own: dict[str, object] = {"exclude_input_in_output": str(config.exclude_input_in_output).lower()}
    if info is None:
        return own
    return own | {
        "max_seq_len": info.context_window,
        "max_output_len": info.max_output_tokens or info.context_window,
        "vocab_size": info.vocab_size,
        "eos_token_ids": ",".join(map(str, info.eos_token_ids)),
        "pad_token_id": "" if info.pad_token_id is None else info.pad_token_id,
    }
