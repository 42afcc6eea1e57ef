"""What models need on 1 to 8 GPUs, by calculation: memory of each rank, and the least time of steps.

    python -m benchmarks.sizing --page benchmarks/results/sizing.md

No GPU is used. Memory is what `serve-app check` says, with the shapes of `benchmarks/gpu/shapes.py`. The
least time of a step is that of a rank's products or of what it reads (`roofline.py`), and the time of
collectives, which nothing overlaps: `RankGroup` adds up rows twice in a layer and once after the embedding,
and gathers the logits.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import torch
from transformers import AutoModelForCausalLM

from benchmarks.gpu.counted import Counted
from benchmarks.gpu.shapes import SHAPES
from benchmarks.roofline import Machine
from serve_app.config import ModelConfig
from serve_app.engine.ranks.group import MANY
from serve_app.models.errors import ModelLoadError
from serve_app.models.split.split import Split
from serve_app.replica.model_check import ModelCheck, check_model

GIB: Final = 2**30
NUMBER_BYTES: Final = 2  # of a row's number, in bfloat16
LAUNCH_S: Final = 6.6e-6  # of a collective, besides its hops
CONTEXT: Final = 2_000  # tokens of a prompt, and of each sequence that decodes
BATCHES: Final = (1, 16, 64)
RANKS: Final = (1, 2, 4, 8)
MODELS: Final = ("llama-3.1-8b", "qwen3-32b", "llama-3.3-70b", "qwen3-30b-a3b", "gpt-oss-120b")
PRECISIONS: Final = {"bf16": "none", "fp8": "fp8", "int4": "int4"}


@dataclass(frozen=True)
class Link:
    """How the GPUs of one model are connected: in a ring, for NCCL."""

    name: str
    bandwidth: float  # bytes a second that a GPU sends
    hop_s: float  # from a GPU to the next one
    far_s: float = 0.0  # more, once, where the ring leaves the machine

    def gather_s(self, ranks: int, size: float) -> float:
        """All ranks' parts of `size` bytes to each of them."""
        if ranks == 1:
            return 0.0
        return LAUNCH_S + self.far_s + (ranks - 1) * (self.hop_s + size / self.bandwidth)

    def total_s(self, ranks: int, numbers: int) -> float:
        """As `RankGroup.total`, which gathers few numbers, and exchanges shares of many before it gathers."""
        size = numbers * NUMBER_BYTES
        if ranks == 2 or numbers < MANY or numbers % ranks:
            return self.gather_s(ranks, size)
        return 2 * self.gather_s(ranks, size / ranks)


@dataclass(frozen=True)
class Gpu:
    """A GPU by its data sheet; `memory` as torch reports it."""

    name: str
    memory: int  # bytes
    sold_gb: int  # its memory as it is sold, by which vLLM's recipes choose
    machine: Machine


H100: Final = Gpu("H100", int(79.1 * GIB), 80, Machine(989e12, 3.35e12))
H200: Final = Gpu("H200", int(139.8 * GIB), 141, Machine(989e12, 4.8e12))
NVLINK: Final = Link("NVLink 4", 450e9, 0.6e-6)
PCIE: Final = Link("PCIe 5 x16", 63e9, 1.0e-6)
# Two machines with four GPUs each; a GPU has an adapter of 400 Gbit/s, and the ring crosses twice.
INFINIBAND: Final = Link("two machines, InfiniBand NDR", 4 * 50e9, 1.0e-6, far_s=1.7e-6)


@dataclass(frozen=True)
class Sums:
    """The collectives of one model's steps."""

    layers: int
    hidden: int
    vocabulary: int

    def step_s(self, link: Link, ranks: int, tokens: int, rows: int) -> float:
        """Of a step of `tokens` tokens, `rows` of which get logits."""
        sums = (2 * self.layers + 1) * link.total_s(ranks, tokens * self.hidden)
        return sums + link.gather_s(ranks, rows * self.vocabulary / ranks * NUMBER_BYTES)


@dataclass(frozen=True)
class Rank:
    """One rank of a model in one precision, on one kind of GPU."""

    found: ModelCheck
    work: Counted
    sums: Sums
    ranks: int
    gpu: Gpu

    @property
    def weight_bytes(self) -> float:
        """Of a weight that steps read, on average: all but the embedding."""
        embedding: int = self.found.model.module.get_input_embeddings().weight.nbytes
        read = self.work.dense + self.work.head + self.work.experts
        return (self.found.model.weight_bytes - embedding) / read

    @property
    def cache_tokens(self) -> int:
        plan = self.found.plan
        return 0 if plan is None else plan.num_blocks * plan.block_size

    def decode(self, batch: int, link: Link) -> tuple[float, float]:
        """Seconds of a step, and those of its collectives."""
        sums = self.sums.step_s(link, self.ranks, batch, batch)
        return self.gpu.machine.decode_s(self.work, batch, CONTEXT, self.weight_bytes) + sums, sums

    def prompt(self, link: Link) -> tuple[float, float]:
        """As `decode`, of a prompt in one step."""
        sums = self.sums.step_s(link, self.ranks, CONTEXT, 1)
        return self.gpu.machine.prefill_s(self.work, CONTEXT) + sums, sums


def rank_of(model: str, quantization: str, ranks: int, gpu: Gpu) -> Rank | None:
    """None: the model does not fit, or cannot be divided."""
    try:
        work, sums = counted(model, ranks)
    except ModelLoadError:
        return None
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(settings(model)), "utf-8")
        (Path(folder) / "model.safetensors").touch()  # it must exist, and is not read
        config = ModelConfig(
            name="model",
            source=folder,
            device="cuda",
            quantization=quantization,
            tensor_parallel=ranks,
        )
        try:
            found = check_model(config, lambda line: None, gpu.memory)
        except ModelLoadError as error:
            if "does not fit" not in str(error):
                raise
            return None
    return Rank(found, work, sums, ranks, gpu)


@cache
def counted(model: str, ranks: int) -> tuple[Counted, Sums]:
    """What one of `ranks` computes of a model. Raises ModelLoadError where it cannot be divided."""
    config = SHAPES[model]()
    sums = Sums(config.num_hidden_layers, config.hidden_size, config.vocab_size)
    if ranks == 1:
        return Counted.of(config), sums
    with torch.device("meta"):
        whole = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    split = Split.of(whole, 0, ranks)
    split.narrow(whole)
    split.finish(whole)
    return Counted.of_model(whole), sums


def refusal(model: str) -> str | None:
    """Why a model cannot be divided."""
    try:
        counted(model, 2)
    except ModelLoadError as error:
        return str(error)
    return None


@cache
def settings(model: str) -> dict[str, object]:
    """A model's config.json."""
    config = SHAPES[model]()
    kind = AutoModelForCausalLM._model_mapping[type(config)]
    return {**config.to_dict(), "architectures": [kind.__name__], "dtype": "bfloat16"}


def page() -> Iterator[str]:
    yield from NOTES
    for model in MODELS:
        yield f"\n## {model}\n"
        if reason := refusal(model):
            yield f"On one GPU only: {reason}.\n"
        yield "| weights | GPUs | of a rank | cache, tokens | decode of 1, ms | of 16 | of 64 | prompt, ms |"
        yield "|---|---|---|---|---|---|---|---|"
        for precision, quantization in PRECISIONS.items():
            for gpu in (H100, H200):
                yield from _rows(model, precision, quantization, gpu)
    yield "\n## Links\n"
    yield "Llama-3.3-70B on eight H200: the time of all collectives of a step, in milliseconds.\n"
    yield "| link | decode of 1 | of 16 | of 64 | prompt |"
    yield "|---|---|---|---|---|"
    rank = rank_of("llama-3.3-70b", "none", 8, H200)
    assert rank is not None
    for link in (NVLINK, PCIE, INFINIBAND):
        times = [rank.decode(batch, link)[1] for batch in BATCHES] + [rank.prompt(link)[1]]
        yield f"| {link.name} | " + " | ".join(f"{each * 1e3:.2f}" for each in times) + " |"
    yield from _beside()


def _rows(model: str, precision: str, quantization: str, gpu: Gpu) -> Iterator[str]:
    """A row for each number of GPUs on which the model fits."""
    for ranks in RANKS:
        rank = rank_of(model, quantization, ranks, gpu)
        if rank is None:
            continue
        steps = [*(rank.decode(batch, NVLINK) for batch in BATCHES), rank.prompt(NVLINK)]
        cells = [
            f"{whole * 1e3:.2f}" + (f" ({sums * 1e3:.2f})" if ranks > 1 else "") for whole, sums in steps
        ]
        size = f"{rank.found.model.weight_bytes / GIB:.1f} GiB"
        yield (
            f"| {precision} | {ranks} {gpu.name} | {size} | {rank.cache_tokens:,} | "
            + " | ".join(cells)
            + " |"
        )


def _beside() -> Iterator[str]:
    """The least GPUs here, beside those of vLLM's recipes."""
    yield from BESIDE
    for model, recipe in RECIPES.items():
        name = f"[{model}]({_TREE}/models/{recipe.path})"
        for precision, (needed, advice) in recipe.variants.items():
            cells = [_least(model, PRECISIONS[precision], gpu) for gpu in (H100, H200)]
            cells += ["1" if needed <= gpu.sold_gb else "8" for gpu in (H100, H200)]
            yield f"| {name} | {precision} | {' | '.join(cells)} | {advice} |"
            name = ""


def _least(model: str, quantization: str, gpu: Gpu) -> str:
    for ranks in RANKS:
        if rank := rank_of(model, quantization, ranks, gpu):
            return f"{ranks} ({rank.cache_tokens:,})"
    return "more than 8"


_SHEETS: Final = "https://www.nvidia.com/en-us/data-center"
_TUNING: Final = (
    "https://github.com/NVIDIA/nccl/blob/b6475625fbcaa2c3c0e50eed2fa1255d7514d4a2/src/graph/tuning.cc#L54"
)
NOTES: Final = f"""\
# Models on 1 to 8 GPUs, by calculation

No GPU has measured any of this. `python -m benchmarks.sizing --page benchmarks/results/sizing.md` computes
it:

* **Memory**: what `serve-app check --tensor-parallel` says of a GPU with 79.1 GiB (H100) or 139.8 GiB
  (H200), of which 92 % count. *bf16* keeps weights as they are; *fp8* and *int4* are settings of
  `quantization`. *Cache* is in bfloat16, over all sequences.
* **Steps**: each takes as long as a rank's products at 989 TFLOP/s (activations stay in bfloat16, whatever
  the weights are in), or as long as reading its weights and caches at 3.35 TB/s ([H100]({_SHEETS}/h100/))
  or 4.8 TB/s ([H200]({_SHEETS}/h200/)), whichever is longer. Every sequence has 2,000 tokens; a prompt has
  2,000, in one step. On one H200, [decodes of Llama-3.1-8B](gpu_h200.md) take 1.1 to 1.3 times as long.
  Layers with a window count as if they saw all tokens. Of experts, those count that some token chooses if
  each is as likely.
* **Collectives**, in parentheses, are part of the time, since nothing overlaps them: two sums in a layer,
  one after the embedding, one gathering of logits. A sum gathers all ranks' rows. With 4 or more ranks and
  262,144 numbers or more, ranks exchange shares, add up, and gather the sums. Links have their published
  rate in one direction: 450 GB/s for NVLink 4, 63 GB/s for PCIe 5 x16, 400 Gbit/s for InfiniBand NDR and
  each GPU. A collective takes 6.6 us, and each hop of its ring 0.6 us by NVLink, 1 us by PCIe and 2.7 us to
  another machine: the latencies by which [NCCL itself]({_TUNING}) chooses its algorithms. Additions, which
  read what was gathered, do not count.

So a time here is the least that is possible in this design: NCCL's latencies are those of its fastest
protocol, which has less than the published rate, and what is computed between layers comes on top.
""".splitlines()

_TREE: Final = "https://github.com/vllm-project/recipes/blob/8959cf64189c71d36e11c6a30335f923f261b1f7"
BESIDE: Final = f"""
## Beside vLLM's recipes

The least number of GPUs here with which the model fits, with the tokens of its cache; and what vLLM's
recipes choose, at their state of August 2026. A recipe names the memory that a variant needs at least,
mostly 1.2 times its weights. [Its command]({_TREE}/src/lib/command-synthesis.js#L38) has
`--tensor-parallel-size 1` if one GPU of 80 GB (H100) or 141 GB (H200) has as much, and else 8, which is all
GPUs of a machine. The last column is what its text says besides.

| model | weights | H100 | H200 | vLLM, H100 | vLLM, H200 | vLLM's text |
|---|---|---|---|---|---|---|""".splitlines()


@dataclass(frozen=True)
class Recipe:
    """One of vLLM's: for each precision its least memory in GB, and its text about numbers of GPUs."""

    path: str
    variants: Mapping[str, tuple[int, str]]


RECIPES: Final = {
    "llama-3.1-8b": Recipe(
        "meta-llama/Llama-3.1-8B-Instruct.yaml",
        {
            "bf16": (20, "one GPU with 16 GB or more"),
            "fp8": (10, ""),
            "int4": (5, ""),
        },
    ),
    "qwen3-32b": Recipe(
        "Qwen/Qwen3-32B.yaml",
        {
            "bf16": (77, "one GPU of 80 GB or more; its command has `--tensor-parallel-size 2`"),
            "fp8": (39, "one GPU of 40 GB"),
            "int4": (20, "one GPU of 24 GB"),
        },
    ),
    "llama-3.3-70b": Recipe(
        "meta-llama/Llama-3.3-70B-Instruct.yaml",
        {"bf16": (170, "2 GPUs"), "fp8": (84, "1 H100 or H200, with a cache in fp8")},
    ),
    "qwen3-30b-a3b": Recipe("Qwen/Qwen3-30B-A3B.yaml", {"bf16": (74, "")}),
    "gpt-oss-120b": Recipe(
        "openai/gpt-oss-120b.yaml", {"int4": (96, "1 A100 of 80 GB; 2, 4, 8; its experts are in MXFP4")}
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--page", type=Path, help="file to write; standard output by default")
    options = parser.parse_args()
    text = "\n".join(page()) + "\n"
    if options.page is None:
        print(text, end="")
    else:
        options.page.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
