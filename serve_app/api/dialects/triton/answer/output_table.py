"""Every output tensor of TensorRT-LLM: type, shape, and the input that asks for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from serve_app.api.dialects.triton.request.inputs import TEXT_INPUT
from serve_app.api.dialects.triton.request.row import BatchRow
from serve_app.api.dialects.triton.role import Role
from serve_app.api.kserve.datatype import BYTES
from serve_app.errors import InvalidField

TEXT: Final = "text_output"  # present where prompts are texts
IDS: Final = "output_ids"
LENGTH: Final = "sequence_length"
ROW: Final = "batch_index"  # the row of the batch that a response is about
SEQUENCE: Final = "sequence_index"  # the sequence of that row
CONTEXT: Final = "context_logits"
GENERATION: Final = "generation_logits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One tensor. An answer has the tensor if the input `flag` asks for it; if `flag` is None, always."""

    datatype: str
    shape: tuple[int, ...]  # the dimension of the batch comes first; -1: any size
    flag: str | None = None


_PERF: Final = "return_perf_metrics"
_PERF_INT64: Final = (
    "arrival_time_ns",
    "first_scheduled_time_ns",
    "first_token_time_ns",
    "last_token_time_ns",
)
_PERF_INT32: Final = (
    "kv_cache_alloc_new_blocks",
    "kv_cache_reused_blocks",
    "kv_cache_alloc_total_blocks",
    "total_accepted_draft_tokens",
    "total_draft_tokens",
)

OUTPUTS: Final[Mapping[str, Output]] = MappingProxyType(
    {
        IDS: Output(datatype="INT32", shape=(-1, -1, -1)),
        LENGTH: Output(datatype="INT32", shape=(-1, -1)),
        "output_log_probs": Output(datatype="FP32", shape=(-1, -1, -1), flag="return_log_probs"),
        "cum_log_probs": Output(datatype="FP32", shape=(-1, -1), flag="return_log_probs"),
        CONTEXT: Output(datatype="FP32", shape=(-1, -1, -1), flag="return_context_logits"),
        GENERATION: Output(datatype="FP32", shape=(-1, -1, -1, -1), flag="return_generation_logits"),
        "num_input_tokens": Output(datatype="INT32", shape=(-1, 1), flag="return_num_input_tokens"),
        "num_output_tokens": Output(datatype="INT32", shape=(-1, -1), flag="return_num_output_tokens"),
        **{name: Output(datatype="INT64", shape=(-1, 1), flag=_PERF) for name in _PERF_INT64},
        **{name: Output(datatype="INT32", shape=(-1, 1), flag=_PERF) for name in _PERF_INT32},
        "acceptance_rate": Output(datatype="FP32", shape=(-1, 1), flag=_PERF),
        ROW: Output(datatype="INT32", shape=(-1, 1)),
        SEQUENCE: Output(datatype="INT32", shape=(-1, -1)),
    }
)


ENSEMBLE_OUTPUTS: Final[Mapping[str, Output]] = MappingProxyType(
    {
        TEXT: Output(datatype=BYTES, shape=(-1,)),
        **{name: each for name, each in OUTPUTS.items() if name not in (IDS, LENGTH)},
    }
)


def wanted_outputs(
    row: BatchRow, asked: Sequence[str] | None, model: str, *, with_text: bool, is_split: bool, role: Role
) -> tuple[str, ...]:
    """The outputs of a request: the listed ones, or else all that its inputs ask for. Raises InvalidField.

    `is_split`: whether each response is about one of many sequences, and has its index.
    """
    if asked is None:
        absent = set() if is_split else {ROW, SEQUENCE}
        if role is Role.ENSEMBLE:
            absent |= {IDS, LENGTH}
        told = (name for name, each in OUTPUTS.items() if each.flag is None or row.flag(each.flag))
        return (*(name for name in told if name not in absent), *((TEXT,) if with_text else ()))
    for name in asked:
        if name == TEXT and not with_text:
            raise InvalidField(name, f"needs the input {TEXT_INPUT}")
        if name not in OUTPUTS and name != TEXT:
            raise InvalidField(
                name[:256],
                f"unexpected inference output '{name[:256]}' for model '{model[:256]}'",
                joint=None,
            )
        flag = None if name == TEXT else OUTPUTS[name].flag
        if flag is not None and not row.flag(flag):
            raise InvalidField(name, f"needs the input {flag} to be true")
    return tuple(asked)
