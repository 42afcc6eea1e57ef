"""Every input of TensorRT-LLM's `InferenceRequest` and of its ensemble: type, shape, range and default.

Ranges are those of the protocol, narrowed to the bounds of `limits`. `fit.py` checks ranges that depend
on the model. The metadata pages list these tensors in this form. This module has only tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from serve_app import limits

MAX_INT: Final = 2**31 - 1
MAX_FLOAT: Final = 3.4e38  # the engine's numbers are FP32
NO_TOKEN: Final = -1  # means "none" in end_id, pad_id and the like


class Rank(IntEnum):
    """The number of a tensor's dimensions, without the batch. A scalar may have one dimension, of size 1."""

    SCALAR = 0
    VECTOR = 1
    TABLE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One tensor. A scalar's bounds are inclusive unless `above`. A vector's bounds apply to each element."""

    name: str
    datatype: str
    rank: Rank = Rank.SCALAR
    shape: tuple[int, ...] = (1,)  # without the batch, for the metadata; -1: any size
    low: float = 0
    high: float = MAX_INT
    above: bool = False  # greater than `low`
    default: bool | float | None = None  # of a scalar; None: there is none, or it depends
    required: bool = False
    also: tuple[str, ...] = ()  # other datatypes that the protocol accepts


def _integer(name: str, low: int, high: int, default: int | None = None, also: tuple[str, ...] = ()) -> Input:
    return Input(name=name, datatype="INT32", low=low, high=high, default=default, also=also)


def _number(
    name: str, low: float, high: float, default: float | None = None, *, above: bool = False
) -> Input:
    return Input(name=name, datatype="FP32", low=low, high=high, default=default, above=above)


def _flag(name: str, default: bool = False) -> Input:
    return Input(name=name, datatype="BOOL", high=1, default=default)


def _ids(name: str, *, required: bool = False) -> Input:
    return Input(name=name, datatype="INT32", rank=Rank.VECTOR, shape=(-1,), high=MAX_INT, required=required)


def _numbers(name: str) -> Input:
    return Input(name=name, datatype="FP32", rank=Rank.VECTOR, shape=(-1,), low=-MAX_FLOAT)


def strings(name: str) -> Input:
    """Any number of texts."""
    return Input(name=name, datatype="BYTES", rank=Rank.VECTOR, shape=(-1,))


def _words(name: str) -> Input:
    return Input(name=name, datatype="INT32", rank=Rank.TABLE, shape=(2, -1), low=-(2**31), high=MAX_INT)


def _table(name: str, datatype: str, columns: int = -1, rows: int = -1, low: float = -MAX_FLOAT) -> Input:
    return Input(name=name, datatype=datatype, rank=Rank.TABLE, shape=(rows, columns), low=low)


_LISTED: Final = (
    _ids("input_ids", required=True),
    Input(name="request_output_len", datatype="INT32", low=1, high=limits.MAX_TOKENS, required=True),
    _integer("input_lengths", 1, MAX_INT),
    _flag("streaming"),
    _integer("beam_width", 1, limits.MAX_BEAM_WIDTH, 1),
    _number("temperature", 0, MAX_FLOAT, 1.0),
    _integer("runtime_top_k", 0, MAX_INT, 0),
    _number("runtime_top_p", 0, 1, 0.0),
    _number("runtime_top_p_min", 0, 1, above=True),
    _number("runtime_top_p_decay", 0, 1, above=True),
    _integer("runtime_top_p_reset_ids", NO_TOKEN, MAX_INT, NO_TOKEN),
    _number("len_penalty", -limits.MAX_LENGTH_PENALTY, limits.MAX_LENGTH_PENALTY, 0.0),
    _integer("early_stopping", -(2**31), MAX_INT, 0, also=("BOOL",)),
    _number("beam_search_diversity_rate", 0, limits.MAX_DIVERSITY_PENALTY, 0.0),
    _integer("num_return_sequences", 1, limits.MAX_N),
    _number("repetition_penalty", 0, limits.MAX_REPETITION_PENALTY, 1.0, above=True),
    _integer("min_length", 0, limits.MAX_TOKENS, 0),
    _number("presence_penalty", -limits.MAX_REPETITION_PENALTY, limits.MAX_REPETITION_PENALTY, 0.0),
    _number("frequency_penalty", -limits.MAX_REPETITION_PENALTY, limits.MAX_REPETITION_PENALTY, 0.0),
    _integer("no_repeat_ngram_size", 0, limits.MAX_NO_REPEAT_NGRAM, 0),
    Input(name="random_seed", datatype="UINT64", high=limits.MAX_SEED, default=0),
    _integer("end_id", NO_TOKEN, MAX_INT),
    _integer("pad_id", NO_TOKEN, MAX_INT),
    _numbers("embedding_bias"),
    _words("bad_words_list"),
    _words("stop_words_list"),
    _table("prompt_embedding_table", "FP16"),
    _integer("prompt_vocab_size", 1, MAX_INT),
    Input(name="prompt_table_extra_ids", datatype="UINT64", rank=Rank.VECTOR, shape=(-1,), high=2**64 - 1),
    Input(name="lora_task_id", datatype="UINT64", high=2**64 - 1),
    _table("lora_weights", "FP16"),
    _table("lora_config", "INT32", columns=3, low=-(2**31)),
    _flag("return_log_probs"),
    _flag("return_context_logits"),
    _flag("return_generation_logits"),
    _flag("return_perf_metrics"),
    _flag("return_num_input_tokens"),
    _flag("return_num_output_tokens"),
    _flag("exclude_input_in_output", default=True),
    _ids("draft_input_ids"),
    _table("draft_logits", "FP32"),
    _number("draft_acceptance_threshold", 0, 1),
    Input(name="guided_decoding_guide_type", datatype="BYTES"),
    Input(name="guided_decoding_guide", datatype="BYTES"),
    _flag("stop"),
    # Hints are checked and change no answer: inputs of encoders, how to look ahead, and how long the
    # cache keeps a prompt.
    _ids("decoder_input_ids"),
    _integer("decoder_input_lengths", 0, MAX_INT),
    _integer("lookahead_window_size", 0, MAX_INT),
    _integer("lookahead_ngram_size", 0, MAX_INT),
    _integer("lookahead_verification_set_size", 0, MAX_INT),
    _ids("retention_token_range_starts"),
    _ids("retention_token_range_ends"),
    _ids("retention_token_range_priorities"),
    _ids("retention_token_range_durations_ms"),
    _integer("retention_decode_priority", 0, MAX_INT),
    _integer("retention_decode_duration_ms", 0, MAX_INT),
)

HINTS: Final = frozenset(each.name for each in _LISTED[-11:])

INPUTS: Final[Mapping[str, Input]] = MappingProxyType({each.name: each for each in _LISTED})

TEXT_INPUT: Final = "text_input"
BAD_WORDS: Final = "bad_words"
STOP_WORDS: Final = "stop_words"
BIAS_WORDS: Final = "embedding_bias_words"
BIAS_WEIGHTS: Final = "embedding_bias_weights"

# Inputs that are texts, or come with texts. The last four are hints too.
TEXTS: Final[Mapping[str, Input]] = MappingProxyType(
    {
        each.name: each
        for each in (
            Input(name=TEXT_INPUT, datatype="BYTES", required=True),
            strings(BAD_WORDS),
            strings(STOP_WORDS),
            strings(BIAS_WORDS),
            _numbers(BIAS_WEIGHTS),
            Input(name="decoder_text_input", datatype="BYTES"),
            Input(name="prompt_table_extra_id", datatype="UINT64", high=2**64 - 1),
            _integer("num_draft_tokens", 0, MAX_INT),
            _flag("use_draft_logits"),
        )
    }
)

MAY_EXCLUDE: Final = ("embedding_bias", BIAS_WEIGHTS, "draft_logits")  # their numbers may be -inf

ACCEPTED: Final[Mapping[str, Input]] = MappingProxyType({**INPUTS, **TEXTS})

# Another name of a tensor -> the tensor's own name.
ALIASES: Final[Mapping[str, str]] = MappingProxyType({"min_tokens": "min_length", "seed": "random_seed"})

# A name that an input has besides text -> the tensor's own name.
RENAMED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "max_tokens": "request_output_len",
        "stream": "streaming",
        "top_k": "runtime_top_k",
        "top_p": "runtime_top_p",
        "length_penalty": "len_penalty",
        **ALIASES,
    }
)
