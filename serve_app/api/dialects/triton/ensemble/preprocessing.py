"""TensorRT-LLM's model `preprocessing`: texts -> the tensors of a request with token ids.

Rows of a batch are padded on their right. `request/words.py` describes the form of word lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from serve_app import limits
from serve_app.api.dialects.triton.answer.output_table import Output
from serve_app.api.dialects.triton.ensemble.step import EnsembleStep, check_names
from serve_app.api.dialects.triton.request.batch import rows_of
from serve_app.api.dialects.triton.request.inputs import MAX_FLOAT, MAX_INT, NO_TOKEN, Input, Rank, strings
from serve_app.api.dialects.triton.request.row import BatchRow
from serve_app.api.dialects.triton.request.text import BiasedWords, read_biased_words, read_prompt, read_texts
from serve_app.api.dialects.triton.request.words import PADDING
from serve_app.api.kserve.datatype import tensor_of
from serve_app.api.kserve.message import InferRequest
from serve_app.errors import InvalidField
from serve_app.types import ModelInfo, Prompt, Tensor, TokenizeRequest, Tokens

QUERY: Final = "QUERY"

INPUTS: Final[Mapping[str, Input]] = MappingProxyType(
    {
        each.name: each
        for each in (
            Input(name=QUERY, datatype="BYTES", required=True),
            Input(name="REQUEST_OUTPUT_LEN", datatype="INT32", low=1, high=limits.MAX_TOKENS, required=True),
            Input(name="DECODER_QUERY", datatype="BYTES"),
            strings("BAD_WORDS_DICT"),
            strings("STOP_WORDS_DICT"),
            strings("EMBEDDING_BIAS_WORDS"),
            Input(
                name="EMBEDDING_BIAS_WEIGHTS",
                datatype="FP32",
                rank=Rank.VECTOR,
                shape=(-1,),
                low=-MAX_FLOAT,
            ),
            Input(name="END_ID", datatype="INT32", low=NO_TOKEN, high=MAX_INT),
            Input(name="PAD_ID", datatype="INT32", low=NO_TOKEN, high=MAX_INT),
            Input(name="PROMPT_TABLE_EXTRA_ID", datatype="UINT64", high=2**64 - 1),
        )
    }
)

OUTPUTS: Final[Mapping[str, Output]] = MappingProxyType(
    {
        "INPUT_ID": Output(datatype="INT32", shape=(-1, -1)),
        "REQUEST_INPUT_LEN": Output(datatype="INT32", shape=(-1, 1)),
        "DECODER_INPUT_ID": Output(datatype="INT32", shape=(-1, -1)),
        "REQUEST_DECODER_INPUT_LEN": Output(datatype="INT32", shape=(-1, 1)),
        "BAD_WORDS_IDS": Output(datatype="INT32", shape=(-1, 2, -1)),
        "STOP_WORDS_IDS": Output(datatype="INT32", shape=(-1, 2, -1)),
        "EMBEDDING_BIAS": Output(datatype="FP32", shape=(-1, -1)),
        "REQUEST_OUTPUT_LEN": Output(datatype="INT32", shape=(-1, -1)),
        "OUT_END_ID": Output(datatype="INT32", shape=(-1, 1)),
        "OUT_PAD_ID": Output(datatype="INT32", shape=(-1, 1)),
        "OUT_PROMPT_TABLE_EXTRA_IDS": Output(datatype="UINT64", shape=(-1, -1)),
    }
)


@dataclass(frozen=True, slots=True)
class _Asked:
    """One row. None: the list of words is absent, which is not the same as empty."""

    query: str
    decoder_query: str | None
    output_len: int
    bad_words: tuple[str, ...] | None
    stop_words: tuple[str, ...] | None
    biased_words: BiasedWords
    end_id: int | None
    pad_id: int | None

    def texts(self) -> Iterator[tuple[str, bool]]:
        """The texts to tokenise. True marks a prompt, which gets special tokens around it."""
        yield self.query, True
        if self.decoder_query is not None:
            yield self.decoder_query, True
        for word in (*(self.bad_words or ()), *(self.stop_words or ())):
            yield word, False
        for word, _ in self.biased_words:
            yield word, False


Ids = Mapping[tuple[str, bool], tuple[int, ...]]


def parse_preprocessing(request: InferRequest) -> EnsembleStep:
    """Raises InvalidField or PromptTooLong."""
    check_names(request, INPUTS, tuple(OUTPUTS))
    rows = [_row(BatchRow(each, None, INPUTS)) for each in rows_of(request.inputs, {}, QUERY)]
    texts = list(dict.fromkeys(text for row in rows for text in row.texts()))
    if len(texts) > limits.MAX_STOP_STRINGS:
        raise InvalidField(QUERY, f"the request must hold at most {limits.MAX_STOP_STRINGS} different texts")

    def tell(info: ModelInfo, told: Sequence[Tokens]) -> dict[str, Tensor]:
        ids = {text: tokens.token_ids for text, tokens in zip(texts, told, strict=True)}
        arrays = dict(_outputs(rows, ids, info))
        if "PROMPT_TABLE_EXTRA_ID" in request.inputs:  # no text has tokens for rows of a prompt table
            arrays["OUT_PROMPT_TABLE_EXTRA_IDS"] = np.zeros_like(arrays["INPUT_ID"])
        return {name: tensor_of(OUTPUTS[name].datatype, each, each.shape) for name, each in arrays.items()}

    return EnsembleStep(
        request=request,
        questions=tuple(
            TokenizeRequest(id="", prompt=Prompt(text=text), add_special_tokens=is_prompt)
            for text, is_prompt in texts
        ),
        tell=tell,
        names={"prompt": QUERY},
    )


def _row(row: BatchRow) -> _Asked:
    """Raises InvalidField or PromptTooLong."""
    row.integer("PROMPT_TABLE_EXTRA_ID")
    return _Asked(
        query=read_prompt(row, QUERY) or "",
        decoder_query=read_prompt(row, "DECODER_QUERY"),
        output_len=row.integer("REQUEST_OUTPUT_LEN") or 0,
        bad_words=_words(row, "BAD_WORDS_DICT", limits.MAX_BAD_WORDS),
        stop_words=_words(row, "STOP_WORDS_DICT", limits.MAX_STOP_SEQUENCES),
        biased_words=read_biased_words(row, "EMBEDDING_BIAS_WORDS", "EMBEDDING_BIAS_WEIGHTS"),
        end_id=row.integer("END_ID"),
        pad_id=row.integer("PAD_ID"),
    )


def _words(row: BatchRow, name: str, most: int) -> tuple[str, ...] | None:
    return read_texts(row, name, most) if name in row else None


def _outputs(rows: Sequence[_Asked], ids: Ids, info: ModelInfo) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    own_end = NO_TOKEN if info.end_token_id is None else info.end_token_id
    ends = [own_end if row.end_id is None else row.end_id for row in rows]
    pads = [info.filler_token_id if row.pad_id is None else row.pad_id for row in rows]
    prompts = [ids[row.query, True] for row in rows]
    decoders = [
        (pad,) if row.decoder_query is None else ids[row.decoder_query, True]
        for row, pad in zip(rows, pads, strict=True)
    ]
    yield "INPUT_ID", _padded(prompts, pads)
    yield "REQUEST_INPUT_LEN", np.asarray([[len(prompt)] for prompt in prompts])
    yield "DECODER_INPUT_ID", _padded(decoders, pads)
    yield "REQUEST_DECODER_INPUT_LEN", np.asarray([[len(decoder)] for decoder in decoders])
    yield "BAD_WORDS_IDS", _lists([row.bad_words for row in rows], ids)
    yield "STOP_WORDS_IDS", _lists([row.stop_words for row in rows], ids)
    yield "EMBEDDING_BIAS", _biases([row.biased_words for row in rows], ids, info.vocab_size)
    yield "REQUEST_OUTPUT_LEN", np.asarray([[row.output_len] for row in rows])
    yield "OUT_END_ID", np.asarray([[end] for end in ends])
    yield "OUT_PAD_ID", np.asarray([[pad] for pad in pads])


def _padded(rows: Sequence[Sequence[int]], pads: Sequence[int]) -> npt.NDArray[Any]:
    width = max(map(len, rows))
    return np.asarray([[*row, *[pad] * (width - len(row))] for row, pad in zip(rows, pads, strict=True)])


def _lists(rows: Sequence[tuple[str, ...] | None], ids: Ids) -> npt.NDArray[Any]:
    """Shape (B, 2, L): the tokens of all words, and the words' ends. L is the width of the widest list."""
    if all(words is None for words in rows):
        return np.zeros((len(rows), 2, 0), np.int32)
    found = [[tokens for word in words or () if (tokens := ids[word, False])] for words in rows]
    width = max(1, *(sum(map(len, words)) for words in found)) if found else 1
    table = np.zeros((len(rows), 2, width), np.int32)
    table[:, 1] = PADDING
    for i, words in enumerate(found):
        flat = [token for word in words for token in word]
        table[i, 0, : len(flat)] = flat
        table[i, 1, : len(words)] = np.cumsum([len(word) for word in words])
    return table


def _biases(rows: Sequence[BiasedWords], ids: Ids, vocab_size: int) -> npt.NDArray[Any]:
    """Shape (B, vocabulary), or (B, 0) if there are no words. Raises InvalidField."""
    if not any(rows):
        return np.zeros((len(rows), 0), np.float32)
    if len(rows) * vocab_size * 4 > limits.MAX_LOGITS_BYTES:
        raise InvalidField("EMBEDDING_BIAS_WORDS", f"must be for fewer than {len(rows)} rows of a batch")
    bias = np.zeros((len(rows), vocab_size), np.float32)
    for i, words in enumerate(rows):
        for word, number in words:
            for token in ids[word, False]:
                bias[i, token] += number
    return bias
