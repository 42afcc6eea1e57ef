"""`transformers serve` with continuous batching."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import ClassVar

from tokenizers import Tokenizer

from benchmarks.load import Body
from benchmarks.peers.peer import BF16, TORCH, Command, Peer, Place


@cache
def tokenizer_of(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


class TransformersServe(Peer):
    name = "transformers"
    requirements = (TORCH, "transformers[serving]==5.23.0")
    formats: ClassVar[Mapping[str, str]] = {BF16: "bf16"}
    notes = (
        "Continuous batching, sdpa, 256 blocks of 256 tokens, 2,048 tokens a step. It takes prompts as text "
        "alone and has no `ignore_eos`; a `generation_config` without an end token says the same."
    )

    def command(self, served: Path, precision: str, place: Place) -> Command:
        batching = ["--continuous-batching", "--cb-num-blocks", "256", "--cb-block-size", "256"]
        settings = ["--cb-max-batch-tokens", "2048", "--dtype", "bfloat16", "--attn-implementation", "sdpa"]
        address = ["--device", "cpu", "--host", "127.0.0.1", "--port", str(place.port)]
        program = str(self.python.with_name("transformers"))
        return Command(
            [program, "serve", str(served), *batching, *settings, *address],
            {"OMP_NUM_THREADS": str(place.threads), "HF_HUB_OFFLINE": "1"},
        )

    def model_name(self, served: Path) -> str:
        return str(served)

    def adapt(self, body: Body, tokenizer: Path) -> Body:
        endless = {"max_new_tokens": body["max_tokens"], "do_sample": False, "eos_token_id": None}
        return {
            "model": body["model"],
            "prompt": tokenizer_of(tokenizer).decode(body["prompt"]),  # type: ignore[arg-type]
            "max_tokens": body["max_tokens"],
            "temperature": 0,
            "stream": True,
            "generation_config": json.dumps(endless),
        }
