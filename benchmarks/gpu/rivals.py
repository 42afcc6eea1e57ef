"""Other engines on the same device: transformers in two ways, and vLLM where it is installed."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import GenerationConfig

from benchmarks.gpu.contender import Contender, NotServedError, Setup, synchronise
from benchmarks.gpu.load import Arrival, Prompt, Seen
from benchmarks.gpu.shapes import END, SHAPES, make_model

STOP_S = 30.0
WAIT_S = 0.5  # for a result; then it is looked whether the other side still lives


class Generate(Contender):
    notes = "`model.generate` with SDPA attention: one batch, which ends together."
    streams = False

    def __init__(self, setup: Setup) -> None:
        self._device = setup.device
        self._model: Any = make_model(setup.shape, setup.dtype, setup.device)

    @property
    def versions(self) -> dict[str, str]:
        return super().versions | {"transformers": transformers.__version__}

    @torch.inference_mode()
    def generate(self, prompts: list[Prompt], new_tokens: int) -> None:
        ids = torch.tensor(prompts, device=self._device)
        out = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=GenerationConfig(
                max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False, pad_token_id=END
            ),
        )
        synchronise(self._device)
        if out.shape[1] != ids.shape[1] + new_tokens:
            raise NotServedError(f"{out.shape[1] - ids.shape[1]} tokens came instead of {new_tokens}")

    def serve(self, arrivals: list[Arrival]) -> list[Seen]:
        raise NotServedError("one batch at a time: requests cannot join")


class ContinuousBatching(Contender):
    notes = "transformers' continuous batching, its defaults: flash attention where it is installed."

    def __init__(self, setup: Setup) -> None:
        self._model: Any = make_model(setup.shape, setup.dtype, setup.device)
        self._model.set_attn_implementation("sdpa")
        self._manager = self._model.init_continuous_batching(
            generation_config=GenerationConfig(
                max_new_tokens=1, do_sample=False, eos_token_id=-1, pad_token_id=END
            )
        )
        self._manager.start()

    @property
    def versions(self) -> dict[str, str]:
        return super().versions | {"transformers": transformers.__version__}

    def generate(self, prompts: list[Prompt], new_tokens: int) -> None:
        self._results([self._manager.add_request(prompt, max_new_tokens=new_tokens) for prompt in prompts])

    def serve(self, arrivals: list[Arrival]) -> list[Seen]:
        began = time.perf_counter()
        names = []
        for arrival in arrivals:
            time.sleep(max(0.0, began + arrival.at - time.perf_counter()))
            names.append(
                self._manager.add_request(
                    arrival.prompt, max_new_tokens=arrival.new_tokens, record_timestamps=True
                )
            )
        results = self._results(names)
        return [
            Seen(arrival.at, [stamp - began for stamp in results[name].timestamps])
            for arrival, name in zip(arrivals, names, strict=True)
        ]

    def close(self) -> None:
        self._manager.stop(block=True, timeout=STOP_S)

    def _results(self, names: list[str | None]) -> dict[str | None, Any]:
        """By request. Those of an earlier job, of which another request failed, are left out."""
        found: dict[str | None, Any] = {}
        while len(found) < len(names):
            result = self._manager.get_result(timeout=WAIT_S)
            if result is not None and result.request_id not in names:
                continue
            if result is None:
                if not self._manager.is_running():
                    raise NotServedError("its generation thread ended")
            elif result.error is not None:
                raise NotServedError(f"a request failed: {result.error}")
            elif result.is_finished():
                found[result.request_id] = result
        return found


class Vllm(Contender):
    notes = (
        "vLLM's engine in process, its defaults, 90 % of the device's memory, weights of its own (`dummy`)."
    )

    def __init__(self, setup: Setup) -> None:
        try:
            import vllm  # type: ignore[import-not-found,unused-ignore]
        except ImportError as error:
            raise NotServedError("vLLM is not installed") from error
        self._vllm: Any = vllm
        folder = Path(tempfile.mkdtemp(prefix="bench-vllm-"))
        config = SHAPES[setup.shape]().to_dict() | {"torch_dtype": str(setup.dtype).removeprefix("torch.")}
        architecture = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}[config["model_type"]]
        (folder / "config.json").write_text(json.dumps(config | {"architectures": [architecture]}))
        self._engine: Any = vllm.LLM(
            model=str(folder),
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype=config["torch_dtype"],
            max_model_len=setup.plan.longest,
            max_num_seqs=max(setup.plan.widest, 16),
            enable_prefix_caching=False,
        ).llm_engine
        self._count = 0

    @property
    def versions(self) -> dict[str, str]:
        return super().versions | {"vllm": self._vllm.__version__}

    def generate(self, prompts: list[Prompt], new_tokens: int) -> None:
        for prompt in prompts:
            self._add(prompt, new_tokens)
        while self._engine.has_unfinished_requests():
            self._engine.step()

    def serve(self, arrivals: list[Arrival]) -> list[Seen]:
        seen: dict[str, Seen] = {}
        came, began = 0, time.perf_counter()
        while came < len(arrivals) or self._engine.has_unfinished_requests():
            now = time.perf_counter() - began
            while came < len(arrivals) and arrivals[came].at <= now:
                arrival = arrivals[came]
                seen[self._add(arrival.prompt, arrival.new_tokens)] = Seen(arrival.at, [])
                came += 1
            if not self._engine.has_unfinished_requests():
                time.sleep(max(0.0, arrivals[came].at - now))
                continue
            outputs = self._engine.step()
            now = time.perf_counter() - began
            for output in outputs:
                tokens = seen[output.request_id].tokens
                tokens += [now] * (len(output.outputs[0].token_ids) - len(tokens))
        return list(seen.values())

    def _add(self, prompt: Prompt, new_tokens: int) -> str:
        self._count += 1
        name = str(self._count)
        sampling = self._vllm.SamplingParams(
            temperature=0.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False
        )
        self._engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
        return name
