"""Whether a GGUF file answers here as in llama.cpp: greedy tokens of twenty prompts, both in one process.

    python -m benchmarks.gguf_agreement FILE [--tokens 40]

Needs llama-cpp-python. The engine runs in float32 on the CPU. Prints a Markdown table: how many tokens of
each answer are the same, and at the first other one how far apart the logits of the two tokens are in each
program. llama.cpp multiplies weights by activations of eight bits, so near ties may fall otherwise.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

import numpy as np

from serve_app.config import ModelConfig
from serve_app.engine.engine import Engine
from serve_app.models.gguf.choice import parts_of
from serve_app.models.gguf.folder import folder_of
from serve_app.replica.build import load_engine
from serve_app.text.tokens.tokenizer import Tokenizer
from serve_app.types import EngineRequest, SamplingParams

WINDOW: Final = 512
PROMPTS: Final = (
    "The capital of France is",
    "Water boils at a temperature of",
    "The first president of the United States was",
    "In the year 1969, astronauts",
    "A recipe for pancakes: take 2 eggs, 300 ml of milk and",
    "def fibonacci(n):\n    ",
    "SELECT name, age FROM",
    "Once upon a time, there was a little girl who",
    "The quick brown fox",
    "E = mc^2 means that",
    "Photosynthesis is the process by which",
    "1, 1, 2, 3, 5, 8, 13,",
    "Dear Sir or Madam,\n\n",
    "The opposite of hot is",
    "import numpy as np\n\nx = np.",
    "Question: What is 17 + 25?\nAnswer:",
    "Le chat est assis sur",
    "The three states of matter are",
    "To be, or not to be,",
    "HTTP status code 404 means",
)


class Theirs:
    """llama.cpp, one token after the other."""

    def __init__(self, file: Path) -> None:
        import llama_cpp

        self._lib = llama_cpp
        self._model = llama_cpp.Llama(str(file), n_ctx=WINDOW, verbose=False, n_threads=2)

    def encode(self, text: str) -> list[int]:
        found: list[int] = self._model.tokenize(text.encode(), add_bos=True, special=True)
        return found

    def logits(self, ids: list[int], *, anew: bool) -> Any:
        """After the last of `ids`, which follow those before, or begin `anew`: [V]."""
        if anew:
            self._model.reset()
        self._model.eval(ids)
        values = self._lib.llama_get_logits_ith(self._model.ctx, -1)
        return np.ctypeslib.as_array(values, (self._model.n_vocab(),)).copy()

    def greedy(self, ids: list[int], count: int) -> tuple[list[int], list[Any]]:
        """The tokens, and the logits from which each was chosen."""
        tokens: list[int] = []
        rows = [self.logits(ids, anew=True)]
        while True:
            tokens.append(int(rows[-1].argmax()))
            if len(tokens) == count or self._lib.llama_vocab_is_eog(self._vocab, tokens[-1]):
                return tokens, rows
            rows.append(self.logits(tokens[-1:], anew=False))

    @property
    def _vocab(self) -> Any:
        return self._lib.llama_model_get_vocab(self._model.model)


def ours(engine: Engine, ids: list[int], count: int) -> list[int]:
    engine.add(
        EngineRequest(
            id="greedy", token_ids=tuple(ids), sampling=SamplingParams(temperature=0, max_tokens=count)
        )
    )
    tokens: list[int] = []
    while engine.has_work():
        for output in engine.step():
            tokens += output.token_ids
    return tokens


def logits(engine: Engine, ids: list[int]) -> Any:
    """After the last of `ids`: [V]."""
    engine.add(
        EngineRequest(
            id="logits", token_ids=tuple(ids), sampling=SamplingParams(max_tokens=1), context_logits=True
        )
    )
    found = None
    while engine.has_work():
        for output in engine.step():
            if "context_logits" in output.tensors:
                tensor = output.tensors["context_logits"]
                found = np.frombuffer(tensor.data, "<f4").reshape(tensor.shape)[-1]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--tokens", type=int, default=40)
    options = parser.parse_args()
    config = ModelConfig(
        name="gguf",
        source=str(options.file),
        device="cpu",
        dtype="float32",
        engine={"max_model_len": WINDOW, "prefix_cache": False},
    )
    engine, model = load_engine(config, print)
    tokenizer = Tokenizer.load(folder_of(parts_of(options.file), print))
    theirs = Theirs(options.file)
    print("| prompt | tokens | same | first other token | ours apart | llama.cpp apart |")
    print("|---|---|---|---|---|---|")
    whole, furthest = 0, 0.0
    for prompt in PROMPTS:
        ids = tokenizer.encode_now(prompt)
        if ids != theirs.encode(prompt):
            raise SystemExit(f"{prompt!r} has other tokens: {ids}, llama.cpp: {theirs.encode(prompt)}")
        want, rows = theirs.greedy(ids, options.tokens)
        got = ours(engine, ids, options.tokens)
        want, got = ([each for each in tokens if each not in model.eos_token_ids] for tokens in (want, got))
        same = next((at for at, pair in enumerate(zip(want, got, strict=False)) if pair[0] != pair[1]), None)
        if same is None and len(want) == len(got):
            whole += 1
            print(f"| {prompt!r} | {len(want)} | {len(want)} | | | |")
            continue
        at = min(len(want), len(got)) if same is None else same
        row = logits(engine, [*ids, *got[:at]])
        one, other = int(row.argmax()), int(rows[at].argmax())
        apart, their_apart = float(row[one] - row[other]), float(rows[at][other] - rows[at][one])
        furthest = max(furthest, min(apart, their_apart))
        words = f"{tokenizer.token_text(one)!r}, not {tokenizer.token_text(other)!r}"
        print(f"| {prompt!r} | {len(want)} | {at} | {words} | {apart:.3f} | {their_apart:.3f} |")
    print(
        f"\n{whole} of {len(PROMPTS)} answers are the same; "
        f"the others part where one program has the two logits at most {furthest:.3f} apart"
    )


if __name__ == "__main__":
    main()
