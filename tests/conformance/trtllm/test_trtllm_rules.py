"""Rules between tensors: word lists, prompt tables, adapters, drafts, batches, streams."""

from __future__ import annotations

from itertools import accumulate, chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.api.dialects.triton.request.row import BatchRow
from serve_app.api.dialects.triton.request.words import read_words
from serve_app.types import Adapter, Draft, PromptTable, Tensor
from tests.conformance.trtllm.asks import IDS, asked_for, body, refusal, tensor, with_tensor
from tests.support.fakes_backend import model_info
from tests.support.gateway import gateway

VOCABULARY = model_info().vocab_size
WORD_LISTS = ["bad_words_list", "stop_words_list"]
ATTRIBUTE = {"bad_words_list": "bad_words", "stop_words_list": "stop_sequences"}

# rows -> the words in them
WORDS: dict[str, tuple[list[list[int]], tuple[tuple[int, ...], ...]]] = {
    "the example of the protocol": ([[11, 4, 9, 2, 6], [2, 5, -1, -1, -1]], ((11, 4), (9, 2, 6))),
    "one word": ([[7], [1]], ((7,),)),
    "single tokens, one wider": ([[7, 8, 0], [1, 2, -1]], ((7,), (8,))),
    "none, as the product's tools have it": ([[0], [-1]], ()),
    "none, as wide as another's": ([[0, 0, 0], [-1, -1, -1]], ()),
    "padded": ([[7, 8, 5, 5], [2, -1, -1, -1]], ((7, 8),)),
    "padded with what is no token": ([[7, 8, -1, 10**6], [2, -1, -1, -1]], ((7, 8),)),
}


@pytest.mark.parametrize("name", WORD_LISTS)
@pytest.mark.parametrize("case", WORDS)
async def test_word_lists(name: str, case: str) -> None:
    rows, words = WORDS[case]
    sampling = (await asked_for(body(**{name: [rows]}))).sampling
    assert getattr(sampling, ATTRIBUTE[name]) == words


@pytest.mark.parametrize("name", WORD_LISTS)
async def test_a_word_list_of_no_width_is_empty(name: str) -> None:
    none = {"name": name, "datatype": "INT32", "shape": [1, 2, 0], "data": []}
    assert getattr((await asked_for(with_tensor(none))).sampling, ATTRIBUTE[name]) == ()


@pytest.mark.parametrize("name", WORD_LISTS)
@pytest.mark.parametrize(
    "rows",
    [
        [[1, 2, 3]],
        [[1, 2], [1, 2], [1, 2]],
        [[1, 2], [2, 1]],
        [[1, 2], [1, 1]],
        [[1, 2], [0, 2]],
        [[1, 2], [3, -1]],
        [[1, 2], [-2, -1]],
        [[1, 2], [-1, 2]],
        [[1, -1], [2, -1]],
        [[1, VOCABULARY], [2, -1]],
        [[1] * 65, [65] + [-1] * 64],
        [[1] * 257, list(range(1, 258))],
    ],
    ids=lambda rows: str(rows)[:40],
)
async def test_word_lists_that_are_none(name: str, rows: list[list[int]]) -> None:
    assert (await refusal(body(**{name: [rows]}))).startswith(f"{name}: ")


@given(st.lists(st.lists(st.integers(0, 999), min_size=1, max_size=8).map(tuple), max_size=20).map(tuple))
def test_any_words_come_back_from_their_list(words: tuple[tuple[int, ...], ...]) -> None:
    assert read(words_list(words)) == words


def test_the_protocols_own_example_is_read_as_it_stands_there() -> None:
    assert read([[11, 4, 9, 2, 6], [2, 5, -1, -1, -1]]) == ((11, 4), (9, 2, 6))


def words_list(words: tuple[tuple[int, ...], ...]) -> list[list[int]]:
    """The two rows of the list of these words, as clients write them."""
    ids = list(chain.from_iterable(words))
    ends = list(accumulate(map(len, words)))
    return [ids, ends + [-1] * (len(ids) - len(ends))]


def read(rows: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    table = np.asarray([rows], "<i4")
    row = BatchRow({"stop_words_list": Tensor(dtype="INT32", shape=table.shape, data=table.tobytes())})
    return read_words(row, "stop_words_list", 256, 64)


# --- prompt tables --------------------------------------------------------------------

TABLE = [[[0.5, -0.5], [1.0, 2.0], [3.0, 4.0]]]


@pytest.mark.parametrize("datatype", ["FP16", "FP32"])
async def test_a_prompt_embedding_table(datatype: str) -> None:
    table = tensor("prompt_embedding_table", TABLE, datatype)
    ids = tensor("input_ids", [VOCABULARY + 1, 5, VOCABULARY])
    asked = await asked_for(with_tensor(table, ids, tensor("prompt_vocab_size", 2)))
    rows = np.asarray(TABLE[0], {"FP16": "<f2", "FP32": "<f4"}[datatype]).tobytes()
    assert asked.prompt_table == PromptTable(rows=Tensor(dtype=datatype, shape=(3, 2), data=rows), used=2)
    assert asked.prompt.token_ids == (VOCABULARY + 1, 5, VOCABULARY)
    assert (await asked_for(with_tensor(table))).prompt_table == PromptTable(
        rows=asked.prompt_table.rows, used=3
    )


async def test_rules_of_a_prompt_embedding_table() -> None:
    table = tensor("prompt_embedding_table", TABLE)
    for beyond, used in ((VOCABULARY + 3, None), (VOCABULARY + 2, 2)):
        ids = tensor("input_ids", [beyond])
        sized = [] if used is None else [tensor("prompt_vocab_size", used)]
        message = await refusal(with_tensor(table, ids, *sized))
        assert message == f"input_ids: token ids must be from 0 to {VOCABULARY + (used or 3) - 1}"
    for size in (0, 4):
        message = await refusal(with_tensor(table, tensor("prompt_vocab_size", size)))
        assert message.startswith("prompt_vocab_size: must be an integer from 1 to ")
    assert (await refusal(body(prompt_vocab_size=1))).startswith("prompt_vocab_size: needs")
    empty = {"name": "prompt_embedding_table", "datatype": "FP16", "shape": [1, 0, 8], "data": []}
    assert (await refusal(with_tensor(empty))).startswith("prompt_embedding_table: ")
    extra = tensor("prompt_table_extra_ids", [0] * len(IDS))
    assert (await asked_for(with_tensor(table, extra))).prompt_table is not None
    assert (await refusal(body(prompt_table_extra_ids=[1]))).startswith("prompt_table_extra_ids: ")


# --- adapters -------------------------------------------------------------------------

CONFIG = [[1, 0, 2], [3, 1, 2]]
WEIGHTS = [[0.5] * 6, [0.25] * 6]


async def test_an_adapter_with_its_weights_and_by_its_id_alone() -> None:
    asked = await asked_for(body(lora_task_id=2**64 - 1, lora_config=CONFIG, lora_weights=WEIGHTS))
    assert asked.adapter == Adapter(
        name=f"task:{2**64 - 1}",
        config=Tensor(dtype="INT32", shape=(2, 3), data=np.asarray(CONFIG, "<i4").tobytes()),
        weights=Tensor(dtype="FP16", shape=(2, 6), data=np.asarray(WEIGHTS, "<f2").tobytes()),
    )
    assert (await asked_for(body(lora_task_id=7))).adapter == Adapter(name="task:7")


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"lora_task_id": 1, "lora_config": CONFIG}, "lora_weights"),
        ({"lora_task_id": 1, "lora_weights": WEIGHTS}, "lora_config"),
        ({"lora_config": CONFIG, "lora_weights": WEIGHTS}, "lora_task_id"),
        ({"lora_task_id": 1, "lora_config": CONFIG, "lora_weights": WEIGHTS[:1]}, "lora_weights"),
        ({"lora_task_id": 1, "lora_config": [[1, 0]], "lora_weights": WEIGHTS[:1]}, "lora_config"),
    ],
)
async def test_adapters_that_are_incomplete(values: dict[str, Any], name: str) -> None:
    assert (await refusal(body(**values))).startswith(f"{name}: ")


# --- drafts ---------------------------------------------------------------------------


async def test_a_draft() -> None:
    assert (await asked_for(body(draft_input_ids=[5, 6]))).draft == Draft(token_ids=(5, 6))
    logits = np.zeros((2, VOCABULARY), "<f4")
    given_ = {"draft_logits": logits.tolist(), "draft_acceptance_threshold": 0.5}
    asked = await asked_for(body(draft_input_ids=[5, 6], **given_))
    assert asked.draft == Draft(
        token_ids=(5, 6),
        logits=Tensor(dtype="FP32", shape=(2, VOCABULARY), data=logits.tobytes()),
        acceptance_threshold=0.5,
    )
    assert (await asked_for(with_tensor(tensor("draft_input_ids", [], shape=[1, 0])))).draft is None


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"draft_input_ids": [5, 6, 7]}, "draft_input_ids"),
        ({"draft_input_ids": [VOCABULARY]}, "draft_input_ids"),
        ({"draft_input_ids": [5], "beam_width": 2}, "draft_input_ids"),
        ({"draft_logits": [[0.0] * VOCABULARY]}, "draft_logits"),
        ({"draft_input_ids": [5, 6], "draft_logits": [[0.0] * VOCABULARY]}, "draft_logits"),
        ({"draft_input_ids": [5], "draft_logits": [[0.0] * 3]}, "draft_logits"),
    ],
)
async def test_drafts_that_cannot_be(values: dict[str, Any], name: str) -> None:
    assert (await refusal(body(**values))).startswith(f"{name}: ")


# --- streams and batches --------------------------------------------------------------


async def test_what_cannot_stream() -> None:
    assert "generate_stream" in await refusal(body(streaming=True))
    path = "/v2/models/demo/generate_stream"
    streamed = {"input_ids": IDS, "request_output_len": 3, "streaming": True}
    assert (await refusal({**streamed, "beam_width": 2}, path)).startswith("streaming: must be false")
    plain = {"text_input": "x", "max_tokens": 1, "stream": True}
    assert (await refusal(plain, "/v2/models/demo/generate")).startswith("stream: must be false")


async def test_a_batch_is_a_request_a_row() -> None:
    batch = {
        "inputs": [
            tensor("input_ids", [[1, 2, 3], [4, 0, 0]], shape=[2, 3]),
            tensor("input_lengths", [[3], [1]], shape=[2, 1]),
            tensor("request_output_len", [2, 5], shape=[2]),
            tensor("bad_words_list", [[[7], [1]], [[0], [-1]]], shape=[2, 2, 1]),
            tensor("guided_decoding_guide_type", ["json", "json"], shape=[2, 1]),
            tensor("stop", [False, False], shape=[2, 1]),
        ]
    }
    async with gateway() as g:
        answer = await g.post("/v2/models/demo/infer", batch)
        assert answer.status_code == 200, answer.text
        asked = {request.prompt.token_ids: request for request in g.backend.requests}
    assert set(asked) == {(1, 2, 3), (4,)}
    assert [asked[ids].sampling.max_tokens for ids in ((1, 2, 3), (4,))] == [2, 5]
    assert [asked[ids].sampling.bad_words for ids in ((1, 2, 3), (4,))] == [((7,),), ()]
    shapes = {each["name"]: each["shape"] for each in answer.json()["outputs"]}
    assert shapes == {"output_ids": [2, 1, 6], "sequence_length": [2, 1]}


@pytest.mark.parametrize(
    "wrong",
    [
        tensor("temperature", [1.0], shape=[1, 1]),
        tensor("temperature", [1.0], shape=[]),
        tensor("temperature", [1.0] * 3, shape=[3, 1]),
        tensor("end_id", [1, 2], shape=[2, 1]),
        tensor("beam_width", [1, 2], shape=[2, 1]),
        tensor("return_log_probs", [True, False], shape=[2, 1]),
        tensor("input_lengths", [2, 4], shape=[2, 1]),
    ],
    ids=lambda each: f"{each['name']} {each['shape']}",
)
async def test_batches_whose_rows_do_not_fit(wrong: dict[str, Any]) -> None:
    inputs = [
        tensor("input_ids", [[1, 2, 3], [4, 5, 6]], shape=[2, 3]),
        tensor("request_output_len", [2, 5], shape=[2, 1]),
        wrong,
    ]
    assert (await refusal({"inputs": inputs})).startswith(f"{wrong['name']}: ")


async def test_a_batch_has_a_limit() -> None:
    inputs = [
        {"name": "input_ids", "datatype": "INT32", "shape": [129, 1], "data": [1] * 129},
        {"name": "request_output_len", "datatype": "INT32", "shape": [129, 1], "data": [1] * 129},
    ]
    assert (await refusal({"inputs": inputs})).startswith("input_ids: a batch must have 1 to 128 rows")
