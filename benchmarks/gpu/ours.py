"""This project's engine, as a replica assembles it, without Ray, text and HTTP around it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

import torch
import transformers

from benchmarks.gpu.contender import Contender, Setup, synchronise
from benchmarks.gpu.load import Arrival, Prompt, Seen
from benchmarks.gpu.shapes import make_model
from serve_app.config import EngineConfig, ModelConfig
from serve_app.engine.assemble import assemble
from serve_app.engine.model.lora import LowRank, Place
from serve_app.errors import Unavailable
from serve_app.types import EngineOutput, EngineRequest, SamplingParams

RANK: Final = 16  # of adapters


def random_updates(shapes: Mapping[Place, tuple[int, int]], seed: int) -> Iterator[LowRank]:
    """An adapter that changes every place a little."""
    random = torch.Generator().manual_seed(seed)
    for (layer, module), (outputs, inputs) in shapes.items():
        a = torch.randn(RANK, inputs, generator=random) * inputs**-0.5
        b = torch.randn(outputs, RANK, generator=random) * 0.1
        yield LowRank(layer, module, a, b)


class Ours(Contender):
    notes = (
        "Attention, fused layers, experts and states in Triton, small steps as CUDA graphs; "
        "on a CPU what `auto` chooses."
    )
    attention: ClassVar[str] = "triton"
    graphs: ClassVar[bool] = True
    quantization: ClassVar[str] = "none"
    cache: ClassVar[str] = "auto"
    adapters: ClassVar[int] = 0  # that requests have in turn

    def __init__(self, setup: Setup) -> None:
        self._device = setup.device
        config = ModelConfig.model_validate(
            {
                "name": "bench",
                "source": setup.shape,  # never looked for: the module is made here
                "device": setup.device.type,
                "quantization": self.quantization,
                "attention": self.attention if setup.device.type == "cuda" else "auto",
                "engine": EngineConfig(
                    max_model_len=setup.plan.longest,
                    max_sequences=setup.plan.widest,
                    max_adapters=self.adapters,  # nobody else keeps memory for any
                    max_adapter_rank=RANK,
                    cuda_graphs=self.graphs,
                    kv_cache_dtype=self.cache,  # type: ignore[arg-type]
                ),
                "adapters": {str(number): "made here" for number in range(self.adapters)},
            }
        )
        self._engine = assemble(
            make_model(setup.shape, setup.dtype, setup.device),
            dtype=setup.dtype,
            device=setup.device,
            context_window=setup.plan.longest,
            eos_token_ids=(),
            config=config,
            progress=lambda line: print(f"  {line}", flush=True),
        )
        self._count = 0
        table = self._engine.adapters
        if table is not None:
            for number in range(self.adapters):
                table.put(str(number), table.compile(random_updates(table.shapes, number)))

    @property
    def versions(self) -> dict[str, str]:
        return super().versions | {"transformers": transformers.__version__}

    def generate(self, prompts: list[Prompt], new_tokens: int) -> None:
        for prompt in prompts:
            self._add(prompt, new_tokens)
        while self._engine.has_work():
            self._step()
        synchronise(self._device)

    def serve(self, arrivals: list[Arrival]) -> list[Seen]:
        seen: dict[str, Seen] = {}
        came, began = 0, time.perf_counter()
        while came < len(arrivals) or self._engine.has_work():
            now = time.perf_counter() - began
            while came < len(arrivals) and arrivals[came].at <= now:
                arrival = arrivals[came]
                seen[self._add(arrival.prompt, arrival.new_tokens)] = Seen(arrival.at, [])
                came += 1
            if not self._engine.has_work():
                time.sleep(max(0.0, arrivals[came].at - now))
                continue
            outputs = self._step()
            now = time.perf_counter() - began
            for output in outputs:
                seen[output.request_id].tokens += [now] * len(output.token_ids)
        return list(seen.values())

    def _step(self) -> list[EngineOutput]:
        """One step. A request that fails ends all others, so that none is left for the next job."""
        outputs = self._engine.step()
        for output in outputs:
            error: Any = output.error
            if error is not None:
                self._engine.fail_all(Unavailable("Another request failed."))
                raise RuntimeError(f"request {output.request_id} failed: {error}")
        return outputs

    def _add(self, prompt: Prompt, new_tokens: int) -> str:
        self._count += 1
        name = str(self._count)
        sampling = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True)
        adapter = str(self._count % self.adapters) if self.adapters else None
        self._engine.add(EngineRequest(id=name, token_ids=tuple(prompt), sampling=sampling, adapter=adapter))
        return name


class InFp8(Ours):
    notes = "Ours with `quantization: fp8`; the share counts bytes of unquantised weights."
    quantization = "fp8"


class InInt8(Ours):
    notes = "Ours with `quantization: int8`; the share counts bytes of unquantised weights."
    quantization = "int8"


class InInt4(Ours):
    notes = "Ours with `quantization: int4`; the share counts bytes of unquantised weights."
    quantization = "int4"


class Int8Cache(Ours):
    notes = "Ours with `kv_cache_dtype: int8`; the share counts bytes of a cache in the type of the weights."
    cache = "int8"


class Fp8Cache(Ours):
    notes = "Ours with `kv_cache_dtype: fp8`; the share counts bytes of a cache in the type of the weights."
    cache = "fp8"


class WithAdapters(Ours):
    notes = f"Ours; the rows of a step have eight LoRA adapters of rank {RANK} at every linear, in turn."
    adapters = 8


class WithoutGraphs(Ours):
    notes = "Ours, launched kernel by kernel."
    graphs = False


class PlainTorch(Ours):
    notes = "`attention: cuda`: paged attention in plain torch, and transformers' own layers."
    attention = "cuda"
