"""TensorRT-LLM's names through the unmodified tritonclient, as the backend's public scripts use them.

The pipeline by hand gives what the ensemble gives. With the scripts themselves at hand, in a folder
that holds the backend's `tools` and `inflight_batcher_llm`, TRTLLM_BACKEND runs them too.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.conformance.target import DEMO
from tests.support.gateway import directory_of, fake_app, served
from tests.support.local_backend import LocalBackend
from tests.support.rpc_server import is_final, rpc_served

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

PROMPT: Final = "What is the capital of France?"
OUTPUT_LEN: Final = 12
CLIENTS: Final = {"http": over_http, "grpc": over_grpc}
BACKEND: Final = os.environ.get("TRTLLM_BACKEND", "")
ROOT: Final = Path(__file__).parents[2]


@dataclass
class Server:
    """A gateway that echoes prompts, as the product does."""

    urls: dict[str, str]

    async def infer(self, protocol: str, model: str, inputs: dict[str, Any], **options: Any) -> Any:
        return await self.ask(
            protocol, lambda client: client.infer(model, tensors(CLIENTS[protocol], inputs), **options)
        )

    async def ask(self, protocol: str, what: Callable[[Any], Any]) -> Any:
        """By a client that lives in one thread, as the one of HTTP must."""

        def work() -> Any:
            with CLIENTS[protocol].InferenceServerClient(self.urls[protocol]) as client:
                return what(client)

        return await asyncio.to_thread(work)

    async def stream(self, model: str, inputs: dict[str, Any], outputs: Iterable[str] = ()) -> list[Any]:
        """The responses to one request of a stream, in order."""
        found: list[Any] = []

        def talk() -> None:
            wanted = [over_grpc.InferRequestedOutput(name) for name in outputs] or None
            with over_grpc.InferenceServerClient(self.urls["grpc"]) as client:
                client.start_stream(callback=lambda result, error: found.append(error or result))
                client.async_stream_infer(model, tensors(over_grpc, inputs), outputs=wanted, request_id="1")
                client.stop_stream()

        await asyncio.to_thread(talk)
        assert not any(isinstance(each, Exception) for each in found), found
        assert [is_final(each) for each in found] == [False] * (len(found) - 1) + [True]
        return found


def tensors(client: Any, inputs: dict[str, Any]) -> list[Any]:
    found = []
    for name, value in inputs.items():
        array = np.asarray(value)
        if array.dtype.kind in "US":
            array = array.astype(object)
        elif array.dtype == np.int64:
            array = array.astype(np.int32)
        elif array.dtype == np.float64:
            array = array.astype(np.float32)
        tensor = client.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        found.append(tensor)
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Server]:
    from serve_app.config import EngineConfig, ModelConfig
    from serve_app.replica.served_model import start

    engine = EngineConfig(max_sequences=32, block_size=16, num_blocks=128, max_model_len=512)
    config = ModelConfig(name=DEMO, dtype="float32", threads=1, engine=engine)
    model: Any = await start(config, lambda _: None)
    backend: Any = LocalBackend(model)
    app = fake_app(backend, directory=directory_of(backend), trtllm={"exclude_input_in_output": False})
    try:
        async with rpc_served(app) as grpc_url, served(app) as (host, port):
            urls = {"grpc": grpc_url, "http": f"{host}:{port}"}
            yield Server(urls)
    finally:
        await model.stop()


def text(prompt: str = PROMPT, **more: Any) -> dict[str, Any]:
    return {"text_input": [[prompt]], "max_tokens": [[OUTPUT_LEN]], **more}


def words(found: Any) -> list[str]:
    return [each.decode() for each in found.as_numpy("text_output")]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_the_pipeline_by_hand_gives_what_the_ensemble_gives(server: Server, protocol: str) -> None:
    none = {"BAD_WORDS_DICT": [[""]], "STOP_WORDS_DICT": [[""]]}
    query = {"QUERY": [[PROMPT]], "REQUEST_OUTPUT_LEN": [[OUTPUT_LEN]], **none}
    before = await server.infer(protocol, "preprocessing", query, request_id="1")
    names = {
        "input_ids": "INPUT_ID",
        "decoder_input_ids": "DECODER_INPUT_ID",
        "input_lengths": "REQUEST_INPUT_LEN",
        "request_output_len": "REQUEST_OUTPUT_LEN",
        "bad_words_list": "BAD_WORDS_IDS",
        "stop_words_list": "STOP_WORDS_IDS",
        "embedding_bias": "EMBEDDING_BIAS",
        "end_id": "OUT_END_ID",
        "pad_id": "OUT_PAD_ID",
    }
    asked: dict[str, Any] = {own: before.as_numpy(name) for own, name in names.items()}
    middle = await server.infer(protocol, "tensorrt_llm", {**asked, "return_log_probs": [[True]]})
    assert middle.as_numpy("output_ids")[0, 0, : asked["input_ids"].size].tolist() == (
        asked["input_ids"][0].tolist()
    )
    batch = {"TOKENS_BATCH": "output_ids", "SEQUENCE_LENGTH": "sequence_length"}
    batch = {own: middle.as_numpy(name) for own, name in batch.items()}
    after = await server.infer(protocol, "postprocessing", batch, request_id="1")
    (by_hand,) = (each.decode() for each in after.as_numpy("OUTPUT"))
    assert by_hand.startswith(f"{PROMPT} Paris.")
    client = CLIENTS[protocol]
    outputs = [client.InferRequestedOutput(name) for name in ("text_output", "cum_log_probs")]
    for model in ("ensemble", "tensorrt_llm_bls"):
        asked = text(return_log_probs=[[True]], bad_words=[[""]], stop_words=[[""]])
        found = await server.infer(protocol, model, asked, outputs=outputs)
        assert words(found) == [by_hand]
        assert found.as_numpy("cum_log_probs") == middle.as_numpy("cum_log_probs")


async def test_a_stream_has_the_text_without_the_prompt(server: Server) -> None:
    (whole,) = words(await server.infer("grpc", "ensemble", text(exclude_input_in_output=[[True]])))
    found = await server.stream("ensemble", text(stream=[[True]]), ["text_output"])
    assert len(found) > 1
    assert "".join(words(each)[0] for each in found) == whole
    (one,) = await server.stream("ensemble", text())
    assert words(one) == [PROMPT + whole]


@pytest.mark.parametrize("streaming", [False, True])
async def test_batches_and_sequences_are_told_apart(server: Server, streaming: bool) -> None:
    prompts = [[PROMPT], ["Hello"]]
    shape = {"max_tokens": [[OUTPUT_LEN]] * 2, "top_k": [[5]] * 2, "num_return_sequences": [[3]] * 2}
    flags = {"exclude_input_in_output": [[True]] * 2, "return_log_probs": [[True]] * 2}
    asked = {"text_input": prompts, **shape, **flags}
    whole = words(await server.infer("grpc", "ensemble", asked))
    found = await server.stream("ensemble", {**asked, "stream": [[streaming]] * 2})
    texts: dict[tuple[int, int], str] = {}
    for each in found:
        key = each.as_numpy("batch_index").item(), each.as_numpy("sequence_index").item()
        texts[key] = texts.get(key, "") + words(each)[0]
    assert [texts[i, j] for i in range(2) for j in range(3)] == whole
    assert len(found) == 6 or streaming


async def test_context_logits_are_in_the_last_response(server: Server) -> None:
    asked = {"input_ids": [[5, 6, 7]], "request_output_len": [[4]], "return_context_logits": [[True]]}
    whole = await server.infer("grpc", "tensorrt_llm", asked)
    first, *rest, last = await server.stream("tensorrt_llm", {**asked, "streaming": [[True]]})
    logits = whole.as_numpy("context_logits")
    assert logits.shape[:2] == (1, 3)
    for each in (first, last):
        assert np.allclose(each.as_numpy("context_logits"), logits, atol=1e-4)
    assert all(each.as_numpy("context_logits") is None for each in rest)


async def test_a_bias_by_words_and_one_that_excludes(server: Server) -> None:
    (plain,) = words(await server.infer("grpc", "ensemble", text(exclude_input_in_output=[[True]])))
    assert "Paris" in plain
    for protocol in CLIENTS:
        for weight in (-100.0, -np.inf):
            bias = {"embedding_bias_words": [["Paris"]], "embedding_bias_weights": [[weight]]}
            asked = text(exclude_input_in_output=[[True]], **bias)
            assert "Paris" not in words(await server.infer(protocol, "ensemble", asked))[0]
        query = {"QUERY": [[PROMPT]], "REQUEST_OUTPUT_LEN": [[3]]}
        lists = {"EMBEDDING_BIAS_WORDS": [["Paris"]], "EMBEDDING_BIAS_WEIGHTS": [[-np.inf]]}
        before = await server.infer(protocol, "preprocessing", {**query, **lists})
        excluded = set(np.flatnonzero(before.as_numpy("EMBEDDING_BIAS")[0] == -np.inf).tolist())
        asked = {"input_ids": before.as_numpy("INPUT_ID"), "request_output_len": [[OUTPUT_LEN]]}
        bias = {"embedding_bias": before.as_numpy("EMBEDDING_BIAS"), "exclude_input_in_output": [[True]]}
        free = await server.infer(protocol, DEMO, {**asked, "exclude_input_in_output": [[True]]})
        kept = await server.infer(protocol, DEMO, {**asked, **bias})
        assert excluded & set(free.as_numpy("output_ids").ravel().tolist())
        assert not excluded & set(kept.as_numpy("output_ids").ravel().tolist())


async def test_drafts_by_hand_give_the_answer_without_them(server: Server) -> None:
    """One model drafts for itself, a few tokens at a time, as the public client of drafts does it."""
    asked = {"QUERY": [[PROMPT]], "REQUEST_OUTPUT_LEN": [[OUTPUT_LEN]]}
    before = await server.infer("grpc", "preprocessing", asked)
    common = {"end_id": before.as_numpy("OUT_END_ID"), "pad_id": before.as_numpy("OUT_PAD_ID")}
    ids = before.as_numpy("INPUT_ID")
    end = ids.size + OUTPUT_LEN
    while ids.size < end:
        count, own = min(4, end - ids.size - 1), {"input_ids": ids, "input_lengths": [[ids.size]], **common}
        draft = {}
        if count:
            told = await server.infer("grpc", "tensorrt_llm", {**own, "request_output_len": [[count]]})
            draft = {"draft_input_ids": told.as_numpy("output_ids")[0, :, ids.size :]}
        asked = {**own, **draft, "request_output_len": [[count + 1]]}
        told = await server.infer("grpc", "tensorrt_llm", asked)
        assert told.as_numpy("output_ids").shape[2] > ids.size
        ids = told.as_numpy("output_ids")[0]
    batch = {"TOKENS_BATCH": ids[None], "SEQUENCE_LENGTH": [[ids.size]]}
    after = await server.infer("grpc", "postprocessing", batch)
    whole = words(await server.infer("grpc", "ensemble", text()))
    assert [each.decode() for each in after.as_numpy("OUTPUT")] == whole


async def test_the_steps_are_answered_on_a_stream_too(server: Server) -> None:
    (found,) = await server.stream("preprocessing", {"QUERY": [["Hello"]], "REQUEST_OUTPUT_LEN": [[3]]})
    ids = found.as_numpy("INPUT_ID")
    asked = {"TOKENS_BATCH": ids[None], "SEQUENCE_LENGTH": [[ids.size]]}
    (found,) = await server.stream("postprocessing", asked)
    assert found.as_numpy("OUTPUT").tolist() == [b"Hello"]


async def test_what_nobody_serves_is_not_ready_and_not_found(server: Server) -> None:
    def look(client: Any) -> None:
        for model, version in (("nobody", ""), (DEMO, "7"), ("x" * 500, "")):
            assert not client.is_model_ready(model, version)
        for model in ("ensemble", "tensorrt_llm_bls", "preprocessing", "postprocessing", "tensorrt_llm"):
            assert client.is_model_ready(model)
            assert client.get_model_metadata(model).name == model
            config = client.get_model_config(model).config
            assert config.parameters["exclude_input_in_output"].string_value == "false"

    await server.ask("grpc", look)
    with pytest.raises(InferenceServerException) as caught:
        await server.infer("grpc", "nobody", {"nonsense": [[5]]})
    assert caught.value.status() == "StatusCode.NOT_FOUND"


# --- the scripts themselves -----------------------------------------------------------

SCRIPTS: Final[dict[str, list[str]]] = {
    "ensemble": ["client/end_to_end_grpc_client.py", "-p", PROMPT, "-o", "12"],
    "ensemble, streamed": ["client/end_to_end_grpc_client.py", "-p", PROMPT, "-o", "12", "-S"],
    "batch": ["client/end_to_end_grpc_client.py", "-p", '["Hi", "Hello"]', "-o", "8", "--batch-inputs"],
    "sequences": ["client/end_to_end_grpc_client.py", "-p", "Hi", "-o", "8", "-n", "2", "-S"],
    "tokens": ["client/inflight_batcher_llm_client.py", "--request-output-len", "8", "-S"],
    "tokens, sequences": ["client/inflight_batcher_llm_client.py", "-n", "2", "--top-k", "5"],
    "http": ["tools/end_to_end_test.py", "--max-input-len", "99"],
    "grpc": ["tools/end_to_end_test.py", "--max-input-len", "99", "-i", "grpc", "--test-bls"],
    "drafts": ["tools/speculative_decoding_test.py", "--max-input-len", "99", "--num-draft-tokens", "4"],
}


@pytest.mark.full
@pytest.mark.skipif(not BACKEND, reason="TRTLLM_BACKEND names no folder with the backend's public scripts")
@pytest.mark.parametrize("name", SCRIPTS)
async def test_the_public_scripts_succeed(server: Server, tmp_path: Path, name: str) -> None:
    script, *options = SCRIPTS[name]
    folder, file = script.split("/")
    inside = {"client": "inflight_batcher_llm/client", "tools": "tools/inflight_batcher_llm"}[folder]
    dataset = tmp_path / "dataset.json"
    dataset.write_text(
        json.dumps([{"input": "What is the capital of", "instruction": "France?", "output": "a b c d e"}])
    )
    if folder == "tools":
        options += ["--dataset", str(dataset)]
    if file.startswith("speculative"):
        for kind in ("target", "draft", "control"):
            options += [f"--url-{kind}", server.urls["grpc"]]
    else:
        options += ["-u", server.urls["http" if name == "http" else "grpc"]]
    if file.startswith("inflight"):
        options += ["--tokenizer-dir", str(ROOT / "serve_app" / "models" / "demo" / DEMO), "--text", "Hello"]
    path = Path(BACKEND) / inside / file
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(path), *options, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    told, _ = await process.communicate()
    assert process.returncode == 0, told.decode()[-3_000:]
    assert b"error" not in told.lower(), told.decode()[-3_000:]
