"""Tensors to a real model: what only an engine can show."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import numpy as np
import pytest

from tests.conformance.conftest import MODEL
from tests.conformance.trtllm.asks import body, events, outputs, tensor

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = f"/v2/models/{MODEL}"
PROMPT = [5, 17, 42, 99, 7]
DRAWN = {"input_ids": PROMPT, "request_output_len": 16, "runtime_top_p": 1.0, "temperature": 3.0}


async def infer(client: httpx.AsyncClient, **values: Any) -> dict[str, Any]:
    given = {"input_ids": PROMPT, "request_output_len": 8, **values}
    return outputs(await client.post(f"{PATH}/infer", json=body(**given)))


async def ids(client: httpx.AsyncClient, **values: Any) -> list[int]:
    found: list[int] = (await infer(client, **values))["output_ids"].ravel().tolist()
    return found


async def test_the_same_seed_gives_the_same_tokens_alone_and_among_others(client: httpx.AsyncClient) -> None:
    alone = [await ids(client, random_seed=77, **DRAWN) for _ in range(2)]
    together = await asyncio.gather(
        *(ids(client, random_seed=77, **DRAWN) for _ in range(8)),
        *(ids(client, random_seed=seed, **DRAWN) for seed in range(1, 9)),
    )
    assert alone[0] == alone[1]
    assert all(each == alone[0] for each in together[:8])
    assert len({tuple(each) for each in together}) > 1


async def test_the_default_seed_is_0_and_temperature_alone_draws_nothing(client: httpx.AsyncClient) -> None:
    assert await ids(client, **DRAWN) == await ids(client, seed=0, **DRAWN)
    greedy = await ids(client)
    for values in ({"temperature": 5.0}, {"random_seed": 9}, {"runtime_top_k": 1}):
        assert await ids(client, **values) == greedy


async def test_without_an_end_id_an_answer_has_its_full_length(client: httpx.AsyncClient) -> None:
    assert len(await ids(client, request_output_len=200)) == 200


async def test_the_end_id_ends_an_answer_and_is_part_of_it(client: httpx.AsyncClient) -> None:
    greedy = await ids(client, request_output_len=8)
    first = greedy.index(greedy[3])
    assert await ids(client, end_id=greedy[3]) == greedy[: first + 1]
    kept = await ids(client, end_id=greedy[3], min_length=8)
    assert len(kept) == 8
    assert greedy[3] not in kept[:7]


async def test_stop_words_stay_and_bad_words_never_come(client: httpx.AsyncClient) -> None:
    greedy = await ids(client)
    word = greedy[2:4]
    stopped = await ids(client, stop_words_list=[[word, [2, -1]]])
    assert stopped[-2:] == word
    assert greedy[: len(stopped)] == stopped
    spared = await ids(client, bad_words_list=[[word, [2, -1]]])
    assert all(spared[i : i + 2] != word for i in range(len(spared)))
    assert greedy[0] not in await ids(client, bad_words_list=[[greedy[:1], [1]]])


async def test_a_bias_decides(client: httpx.AsyncClient) -> None:
    config = (await client.get(f"{PATH}/config")).json()
    size = int(config["parameters"]["vocab_size"]["string_value"])
    bias = [0.0] * size
    bias[123] = 1_000.0
    assert set(await ids(client, embedding_bias=bias)) == {123}
    assert await ids(client, embedding_bias=[0.0] * size) == await ids(client)


async def test_a_stream_has_the_tokens_and_logprobs_of_a_whole_answer(client: httpx.AsyncClient) -> None:
    for values in ({}, {**DRAWN, "random_seed": 5}):
        asked = {"input_ids": PROMPT, "request_output_len": 8, "return_log_probs": True, **values}
        whole = (await client.post(f"{PATH}/generate", json=asked)).json()
        answer = await client.post(f"{PATH}/generate_stream", json={**asked, "streaming": True})
        found = events(answer.content)
        assert [event["output_ids"] for event in found] == whole["output_ids"]
        assert [event["output_log_probs"] for event in found] == whole["output_log_probs"]
        assert found[-1]["cum_log_probs"] == pytest.approx(whole["cum_log_probs"], abs=1e-4)
        assert [event["sequence_length"] for event in found] == [1] * whole["sequence_length"]


async def test_texts_stream_as_they_come_whole(client: httpx.AsyncClient) -> None:
    asked = {"text_input": "Once upon a time", "max_tokens": 40}
    whole = (await client.post(f"{PATH}/generate", json=asked)).json()
    streamed = events((await client.post(f"{PATH}/generate_stream", json={**asked, "stream": True})).content)
    assert "".join(event["text_output"] for event in streamed) == whole["text_output"] != ""
    echoed = (await client.post(f"{PATH}/generate", json={**asked, "exclude_input_in_output": False})).json()
    assert echoed["text_output"] == asked["text_input"] + whole["text_output"]
    assert echoed["output_ids"][-whole["sequence_length"] :] == whole["output_ids"]


async def test_beams_are_sorted_best_first_and_padded(client: httpx.AsyncClient) -> None:
    found = await infer(client, beam_width=4, return_log_probs=True, end_id=3, pad_id=0)
    scores = found["cum_log_probs"][0]
    assert found["output_ids"].shape[:2] == (1, 4)
    assert scores.tolist() == sorted(scores.tolist(), reverse=True)
    assert np.allclose(found["output_log_probs"][0].sum(-1), scores, atol=1e-4)
    best = await infer(client, beam_width=4, num_return_sequences=1, end_id=3)
    length = int(best["sequence_length"][0, 0])
    assert best["output_ids"][0, 0].tolist() == found["output_ids"][0, 0, :length].tolist()


async def test_a_batch_has_the_tokens_of_its_rows_alone(client: httpx.AsyncClient) -> None:
    alone = [await ids(client), await ids(client, input_ids=PROMPT[:2])]
    padded = [PROMPT, [*PROMPT[:2], 0, 0, 0]]
    inputs = [
        tensor("input_ids", padded, shape=[2, 5]),
        tensor("input_lengths", [5, 2], shape=[2, 1]),
        tensor("request_output_len", [8, 8], shape=[2, 1]),
    ]
    found = outputs(await client.post(f"{PATH}/infer", json={"inputs": inputs}))
    assert found["output_ids"].shape == (2, 1, 8)
    assert found["output_ids"][:, 0].tolist() == alone


async def test_a_guide_is_kept_to(client: httpx.AsyncClient) -> None:
    asked = {
        "text_input": "A number:",
        "max_tokens": 30,
        "guided_decoding_guide_type": "regex",
        "guided_decoding_guide": "[0-9]{3}",
    }
    text = (await client.post(f"{PATH}/generate", json=asked)).json()["text_output"]
    assert len(text) == 3
    assert text.isdigit()


async def test_a_structural_tag_constrains_what_follows_its_trigger(client: httpx.AsyncClient) -> None:
    guide = '{"structures":[{"begin":"<n>","schema":{"type":"integer"},"end":"</n>"}],"triggers":["<n>"]}'
    asked = {
        "text_input": "A number:",
        "max_tokens": 30,
        "guided_decoding_guide_type": "structural_tag",
        "guided_decoding_guide": guide,
    }
    answer = await client.post(f"{PATH}/generate", json=asked)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("text", ["stop_words", "bad_words"])
async def test_words_as_text(client: httpx.AsyncClient, text: str) -> None:
    asked = {"text_input": "Once upon a time", "max_tokens": 40}
    plain = (await client.post(f"{PATH}/generate", json=asked)).json()["text_output"]
    word = plain.split()[3]
    answer = (await client.post(f"{PATH}/generate", json={**asked, text: [word]})).json()["text_output"]
    if text == "stop_words":
        assert answer == plain[: plain.index(word) + len(word)]
    else:
        assert f" {word} " not in answer


async def test_logits_are_raw_and_agree_with_tokens_and_log_probabilities(client: httpx.AsyncClient) -> None:
    found = await infer(
        client,
        return_context_logits=True,
        return_generation_logits=True,
        return_log_probs=True,
        repetition_penalty=2.0,
    )
    context, generation = found["context_logits"][0], found["generation_logits"][0, 0]
    assert context.shape[0] == len(PROMPT)
    assert generation.shape == (8, context.shape[1])
    assert np.allclose(context[-1], generation[0], atol=1e-4)
    tokens = found["output_ids"][0, 0].astype(int)
    logprobs = generation - np.log(
        np.exp(generation - generation.max(-1, keepdims=True)).sum(-1, keepdims=True)
    )
    logprobs -= generation.max(-1, keepdims=True)
    assert np.allclose(logprobs[range(8), tokens], found["output_log_probs"][0, 0], atol=1e-3)


async def test_a_stream_has_the_logits_of_a_whole_answer(client: httpx.AsyncClient) -> None:
    flags = {"return_context_logits": True, "return_generation_logits": True}
    asked = {"input_ids": PROMPT, "request_output_len": 4, **flags}
    whole = (await client.post(f"{PATH}/generate", json=asked)).json()
    answer = await client.post(f"{PATH}/generate_stream", json={**asked, "streaming": True})
    found = events(answer.content)
    streamed = [number for event in found for number in event["generation_logits"]]
    assert np.allclose(streamed, whole["generation_logits"], atol=1e-4)
    assert np.allclose(found[0]["context_logits"], whole["context_logits"], atol=1e-4)
    assert np.allclose(found[-1]["context_logits"], whole["context_logits"], atol=1e-4)
    assert all("context_logits" not in event for event in found[1:-1])


async def test_perf_metrics_are_in_order(client: httpx.AsyncClient) -> None:
    found = await infer(client, return_perf_metrics=True)
    times = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")
    measured = [found[name].item() for name in times]
    assert measured == sorted(measured)
    blocks = ("kv_cache_alloc_new_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks")
    new, reused, total = (found[name].item() for name in blocks)
    assert new + reused == total > 0
    drafted, accepted = (found[f"total_{kind}_tokens"].item() for kind in ("draft", "accepted_draft"))
    assert drafted >= accepted >= 0  # the engine may guess by itself


async def test_a_draft_changes_no_token(client: httpx.AsyncClient) -> None:
    greedy = await ids(client, request_output_len=12)
    for draft, accepted in ((greedy[:6], 6), ([*greedy[:2], greedy[2] + 1, *greedy[3:5]], 2)):
        found = await infer(client, request_output_len=12, draft_input_ids=draft, return_perf_metrics=True)
        assert found["output_ids"].ravel().tolist() == greedy
        assert found["total_draft_tokens"].item() == len(draft)
        assert found["total_accepted_draft_tokens"].item() == accepted
        assert found["acceptance_rate"].item() == pytest.approx(accepted / len(draft), abs=1e-6)
    drawn = {**DRAWN, "random_seed": 3}
    assert await ids(client, draft_input_ids=greedy[:6], **drawn) == await ids(client, **drawn)


async def test_a_task_without_weights_is_not_known(client: httpx.AsyncClient) -> None:
    answer = await client.post(f"{PATH}/infer", json=body(lora_task_id=123_456_789))
    assert answer.status_code == 400
    assert "123456789" in answer.json()["error"]
    assert "lora_weights" in answer.json()["error"]


async def test_a_decaying_top_p_is_greedy_after_the_first_token(client: httpx.AsyncClient) -> None:
    first, *rest = await ids(client, seed=3, runtime_top_p_decay=1e-6, **DRAWN)
    likeliest = await ids(client, input_ids=[*PROMPT, first], request_output_len=len(rest))
    assert rest == likeliest
    assert rest != (await ids(client, seed=3, **DRAWN))[1:]
