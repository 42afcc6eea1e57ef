"""TensorRT-LLM's model `postprocessing`: token ids of sequences -> their texts, without special tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from serve_app import limits
from serve_app.api.dialects.triton.answer.output_table import Output
from serve_app.api.dialects.triton.ensemble.step import EnsembleStep, check_names
from serve_app.api.dialects.triton.request.inputs import MAX_INT, Input, Rank
from serve_app.api.kserve.datatype import BYTES, check_datatype, integers, tensor_of_strings
from serve_app.api.kserve.message import InferRequest
from serve_app.errors import InvalidField
from serve_app.types import Detokenized, DetokenizeRequest, ModelInfo, Tensor

TOKENS: Final = "TOKENS_BATCH"
LENGTH: Final = "SEQUENCE_LENGTH"
OUTPUT: Final = "OUTPUT"

INPUTS: Final[Mapping[str, Input]] = MappingProxyType(
    {
        TOKENS: Input(name=TOKENS, datatype="INT32", rank=Rank.TABLE, shape=(-1, -1), required=True),
        LENGTH: Input(name=LENGTH, datatype="INT32", rank=Rank.VECTOR, shape=(-1,), required=True),
    }
)
OUTPUTS: Final[Mapping[str, Output]] = MappingProxyType({OUTPUT: Output(datatype=BYTES, shape=(-1,))})

_RANK: Final = 3  # the dimensions of the tokens: rows of a batch, beams, tokens


def parse_postprocessing(request: InferRequest) -> EnsembleStep:
    """Raises InvalidField."""
    check_names(request, INPUTS, tuple(OUTPUTS))
    tokens, lengths = _numbers(request, TOKENS, _RANK), _numbers(request, LENGTH, _RANK - 1)
    if lengths.shape != tokens.shape[:-1]:
        raise InvalidField(
            LENGTH, f"must have the shape {list(tokens.shape[:-1])}, that of {TOKENS} but its last"
        )
    width = tokens.shape[-1]
    if lengths.size > limits.MAX_PROMPTS:
        raise InvalidField(TOKENS, f"must hold at most {limits.MAX_PROMPTS} sequences")
    if lengths.size and not 0 <= int(lengths.min()) <= int(lengths.max()) <= width:
        raise InvalidField(LENGTH, f"must hold integers from 0 to {width}, the width of {TOKENS}")
    rows = zip(tokens.reshape(-1, width), lengths.ravel().tolist(), strict=True)
    sequences = [tuple(row[:length].tolist()) for row, length in rows]
    if any(min(ids, default=0) < 0 for ids in sequences):
        raise InvalidField(TOKENS, "token ids must not be negative but in the padding")

    def tell(info: ModelInfo, told: Sequence[Detokenized]) -> dict[str, Tensor]:
        return {OUTPUT: tensor_of_strings([each.text for each in told], (len(told),))}

    return EnsembleStep(
        request=request,
        questions=tuple(
            DetokenizeRequest(id="", token_ids=ids, skip_special_tokens=True) for ids in sequences
        ),
        tell=tell,
        names={"tokens": TOKENS},
    )


def _numbers(request: InferRequest, name: str, rank: int) -> npt.NDArray[Any]:
    """The tensor, with a leading dimension of 1 added where one is missing. Raises InvalidField."""
    tensor = request.inputs[name]
    check_datatype(name, tensor, "INT32")
    if len(tensor.shape) not in (rank, rank - 1) or 0 in tensor.shape[:-1]:
        raise InvalidField(name, f"must have {rank} dimensions, the batch first")
    shape = tensor.shape if len(tensor.shape) == rank else (1, *tensor.shape)
    return np.asarray(integers(name, tensor, -(2**31), MAX_INT)).reshape(shape)
