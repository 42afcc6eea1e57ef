"""The trial of the GPU's kernels: what it asks, what it finds, and what its process leaves behind.

In Triton's interpreter where there is no device.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import PreTrainedModel

from serve_app.config import ModelConfig
from serve_app.engine import devices
from serve_app.engine.assemble import assemble
from serve_app.engine.attention.triton.backend import TritonAttention
from serve_app.engine.cuda.adapters.slots import SiteStack
from serve_app.engine.cuda.adapters.tiles import MANY, Tiles
from serve_app.engine.cuda.experts.grouped import Pairs
from serve_app.engine.cuda.launch import TritonKernels
from serve_app.engine.cuda.trial import choose, products, verdict
from serve_app.engine.cuda.trial.choose import Choice
from serve_app.engine.cuda.trial.compare import attention_fault, experts_fault, find_fault
from serve_app.engine.cuda.trial.question import AttentionUse, ExpertsUse, Question, ask_about
from serve_app.engine.cuda.trial.steps import DECODES, PIECE, Prompts, steps_of
from serve_app.engine.cuda.trial.verdict import COMMAND, Verdict, fault_of
from serve_app.engine.experts.gate import Gate
from serve_app.engine.weights.codes_product import CodesProduct
from tests.support.invariants import WAIT_S
from tests.support.tiny_models import ARCHITECTURES, tiny_model
from tests.support.tiny_states import tiny_stateful
from tests.support.triton_interpreter import LONG, long

pytestmark = pytest.mark.usefixtures("one_thread")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LONGEST = 40


def question_of(
    architecture: str, dtype: torch.dtype = torch.float32, codes: str = "auto", rank: int = 0
) -> Question:
    model = tiny_model(architecture).to(DEVICE, dtype)
    return ask_about(
        model, dtype=dtype, device=DEVICE, block_size=16, codes=codes, rank=rank, longest=LONGEST
    )


@pytest.fixture(scope="module")
def llama() -> Question:
    return question_of("llama")


@pytest.fixture(autouse=True)
def _short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences of a few tokens have several parts, too."""
    from serve_app.engine.attention.triton import backend, plan

    for module in (backend, plan):
        monkeypatch.setattr(module, "PART", 16)


def test_a_question_has_every_use_of_attention_once_and_a_small_model_of_the_same_layers() -> None:
    asked = question_of("qwen2")
    assert asked.uses == (AttentionUse(4, 2, 8, 8, 8**-0.5, None, None, False),)
    assert asked.model == "Qwen2ForCausalLM"
    assert asked.config is not None
    assert '"num_hidden_layers": 2' in asked.config
    assert '"hidden_size": 32' in asked.config
    assert Question.from_json(asked.to_json()) == asked
    assert question_of("qwen2").to_json() == asked.to_json()
    windows = {use.window for use in question_of("gemma2").uses}
    assert windows == {None, 6}
    assert question_of("qwen2", rank=6).rank == 6
    latents = question_of("deepseek_v3", rank=6)
    assert latents.rank == 0
    assert latents.model is latents.config is None  # no fused layers
    sinks = question_of("gpt_oss", rank=6)
    assert sinks.rank == 6
    assert all(use.sinks for use in sinks.uses)
    assert sinks.model == "GptOssForCausalLM"
    gate = Gate(limit=7.0, alpha=1.702, added=1.0)
    assert sinks.experts == (ExpertsUse(4, 2, 32, 48, gate, True, True, True, True),)
    assert Question.from_json(sinks.to_json()) == sinks


@pytest.mark.parametrize("kind", ["lfm2", "mamba2"])  # the second has no attention, and no positions
def test_a_question_says_whether_layers_have_states(kind: str) -> None:
    model = tiny_stateful(kind).to(DEVICE)
    asked = ask_about(model, dtype=torch.float32, device=DEVICE, block_size=16, codes="auto", longest=LONGEST)
    assert asked.states
    assert asked.longest == LONGEST
    assert not question_of("gpt_oss").states


def test_no_sequence_is_longer_than_the_models_positions() -> None:
    model = tiny_model("llama").to(DEVICE)
    asked = ask_about(model, dtype=torch.float32, device=DEVICE, block_size=16, codes="auto")
    assert asked.longest == 64 - DECODES - 1


def test_steps_cover_every_token_once_in_order_and_end_with_prompts_beside_decodes() -> None:
    prompts = Prompts.of(2 * PIECE + 7, 16)
    done: dict[int, int] = {}
    kinds = []
    for batch in steps_of(prompts, 9, torch.device("cpu"), adapted=True):
        assert sum(batch.context.query_lens) <= PIECE
        kinds.append({min(rows, 2) for rows in batch.context.query_lens})
        for chunk in batch.chunks:
            assert chunk.sequence.adapter is None or len(kinds) <= 3 + DECODES
            assert chunk.start == done.get(id(chunk.sequence), 0)
            done[id(chunk.sequence)] = chunk.end
    assert kinds == [{1, 2}, {2}, {2}, *[{1}] * DECODES, {1, 2}]
    assert sorted(done.values(), reverse=True)[0] == 2 * PIECE + 7 + DECODES + 1
    tables = [
        table for batch in steps_of(prompts, 9, torch.device("cpu")) for table in batch.context.block_tables
    ]
    assert max(int(table.max()) for table in tables) < prompts.num_blocks


@pytest.mark.parametrize(
    ("architecture", "codes"),
    [
        pytest.param("llama", "auto", marks=LONG),
        pytest.param("qwen3", "int8", marks=LONG),
        *(
            pytest.param(*case, marks=pytest.mark.full)
            for case in (("llama", "fp8"), ("qwen3", "auto"), ("mistral", "auto"), ("mistral", "int8"))
        ),
    ],
)
def test_nothing_is_wrong_with_the_kernels(architecture: str, codes: str) -> None:
    """With what a graph would replay in place of graphs, so the filled-up steps are tried, too."""
    assert find_fault(question_of(architecture, codes=codes, rank=6), lambda step: step) is None


@pytest.mark.parametrize(
    "dtype",
    [pytest.param(torch.bfloat16, marks=LONG), pytest.param(torch.float16, marks=pytest.mark.full)],
    ids=str,
)
def test_nor_with_those_of_narrow_types(dtype: torch.dtype) -> None:
    assert find_fault(question_of("llama", dtype, rank=20), lambda step: step) is None


# Softcap and windows, sinks, and keys wider than values.
@long
@pytest.mark.parametrize(
    "architecture",
    ["gpt_oss", pytest.param("gemma2", marks=LONG), pytest.param("deepseek_v3", marks=LONG)],
)
def test_nor_with_other_uses_of_attention(architecture: str) -> None:
    assert find_fault(question_of(architecture)) is None


@pytest.mark.full
@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_nor_with_those_of_any_family(architecture: str) -> None:
    assert find_fault(question_of(architecture), lambda step: step) is None


class OffByABit(TritonAttention):
    """Wrong where a decode has several parts."""

    def attend(self, layer: int, query: torch.Tensor, context: Any, **options: Any) -> torch.Tensor:
        out = super().attend(layer, query, context, **options)
        if set(context.query_lens) == {1}:
            out[-1, 0] *= 1.01
        return out


class NotANumber(TritonAttention):
    def attend(self, layer: int, query: torch.Tensor, context: Any, **options: Any) -> torch.Tensor:
        return super().attend(layer, query, context, **options).fill_(torch.nan)


@pytest.mark.parametrize("wrong", [OffByABit, NotANumber])
def test_attention_that_is_wrong_is_a_fault_that_names_the_step(
    llama: Question, wrong: Callable[[], TritonAttention]
) -> None:
    fault = attention_fault(llama.uses[0], llama, torch.float32, DEVICE, wrong())
    assert fault is not None
    assert "differs by" in fault
    assert ("[1, 1" in fault) == (wrong is OffByABit)


@long
def test_a_wrong_kernel_of_fused_layers_is_a_fault(llama: Question, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong in the size of a step of the trial alone, so that the check of one layer does not see it."""
    right = TritonKernels.gated

    def gated(self: TritonKernels, gate_up: torch.Tensor, gelu: bool = False) -> torch.Tensor:
        out = right(self, gate_up, gelu)
        return out if len(out) == 5 else out * 1.1

    monkeypatch.setattr(TritonKernels, "gated", gated)
    fault = find_fault(llama)
    assert fault is not None
    assert fault.startswith("fused layers change logits")


@pytest.mark.parametrize("rows", [1, pytest.param(8 * MANY, marks=LONG)])
def test_a_wrong_product_of_experts_is_a_fault(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = question_of("gpt_oss")
    right = Pairs.add

    def add(self: Pairs, parts: torch.Tensor, count: int) -> torch.Tensor:
        out = right(self, parts, count)
        return out * 1.2 if count == rows else out

    assert experts_fault(asked.experts[0], torch.float32, DEVICE) is None
    monkeypatch.setattr(Pairs, "add", add)
    fault = experts_fault(asked.experts[0], torch.float32, DEVICE)
    assert fault is not None
    assert fault.endswith(f"for {rows} rows")


@pytest.mark.parametrize("name", ["int8", pytest.param("int4", marks=LONG), pytest.param("fp8", marks=LONG)])
def test_a_wrong_product_of_codes_is_a_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "SHAPES", ((20, 150),))
    monkeypatch.setattr(products, "ROWS", (1, 3))
    asked = Question(str(DEVICE), "float32", (), 16, "auto", None, None, quantization=name)
    assert find_fault(asked) is None
    right = CodesProduct.multiply

    def wrong(self: CodesProduct, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return right(self, x, dtype) * (1.01 if len(x) == 3 else 1)

    monkeypatch.setattr(CodesProduct, "multiply", wrong)
    fault = find_fault(asked)
    assert fault is not None
    assert fault.startswith(f"products of 20 x 150, 3 rows in {name} differ")


@pytest.mark.parametrize(
    "prompts",
    [pytest.param(True, marks=LONG, id="prompts"), pytest.param(False, marks=LONG, id="decodes")],
)
def test_a_wrong_product_of_adapters_is_a_fault(prompts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    right = SiteStack.add

    def add(self: SiteStack, x: torch.Tensor, out: torch.Tensor, tiles: Tiles) -> None:
        right(self, x, out, tiles)
        if (tiles.size == MANY) == prompts:
            right(self, x, out, tiles)

    monkeypatch.setattr(SiteStack, "add", add)
    assert find_fault(question_of("llama")) is None  # none are tried
    fault = find_fault(question_of("llama", rank=6))
    assert fault is not None
    assert fault.startswith("fused layers change logits")


@pytest.mark.parametrize("architecture", [pytest.param("llama", marks=LONG)])
def test_a_graph_that_replays_another_step_is_a_fault(architecture: str) -> None:
    def record(step: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        kept = step().clone()
        return lambda: kept

    fault = find_fault(question_of(architecture), record)
    assert fault is not None
    assert fault.startswith("graphs of steps change logits")


def child(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", code


def counting(folder: Path, code: str) -> tuple[str, ...]:
    """A trial that notes each of its runs."""
    return child(f"open({str(folder / 'runs')!r}, 'a').write('.')\n{code}")


def runs(folder: Path) -> int:
    return len((folder / "runs").read_text())


PASSES = f"print('a line of a library')\nprint({Verdict(None).to_json().decode()!r})"


def test_what_passed_is_not_tried_again_and_what_failed_is(llama: Question, tmp_path: Path) -> None:
    fails = counting(tmp_path, f"print({Verdict('it is wrong').to_json().decode()!r})")
    assert fault_of(llama, tmp_path, fails) == "it is wrong"
    assert fault_of(llama, tmp_path, counting(tmp_path, PASSES)) is None
    assert fault_of(llama, tmp_path, fails) is None
    assert runs(tmp_path) == 2
    other = replace(llama, block_size=32)
    assert fault_of(other, tmp_path, fails) == "it is wrong"


def test_whoever_asks_the_same_meanwhile_waits_for_the_answer(llama: Question, tmp_path: Path) -> None:
    slow = counting(tmp_path, f"import time; time.sleep(1)\n{PASSES}")
    with ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(fault_of, llama, tmp_path, slow) for _ in range(3)]
    assert [each.result() for each in asked] == [None] * 3
    assert runs(tmp_path) == 1


def test_a_change_of_the_kernels_asks_for_a_new_trial(
    llama: Question, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fault_of(llama, tmp_path, child(PASSES)) is None
    monkeypatch.setattr(verdict, "SOURCES", (*verdict.SOURCES, "batch.py"))
    assert fault_of(llama, tmp_path, child("raise SystemExit(3)")) is not None


def test_a_process_that_dies_is_a_fault_that_says_its_last_words(llama: Question, tmp_path: Path) -> None:
    dies = child(
        "import os, sys; print('an illegal memory access', file=sys.stderr); sys.stderr.flush(); os.abort()"
    )
    fault = fault_of(llama, tmp_path, dies)
    assert fault is not None
    assert "status -6" in fault
    assert "an illegal memory access" in fault
    assert fault_of(llama, tmp_path, ("/no/such/program",)) is not None


def test_a_trial_that_hangs_is_ended(
    llama: Question, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict, "TIMEOUT_S", 1)
    fault = fault_of(llama, tmp_path, child("import time; time.sleep(600)"))
    assert fault == "the trial took more than 1 s"


def test_a_folder_that_cannot_be_written_costs_the_memory_alone(llama: Question, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert fault_of(llama, tmp_path / "file" / "folder", child(PASSES)) is None


def test_nor_does_a_folder_that_cannot_be_read(
    llama: Question, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exists(path: Path, **_: object) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", exists)
    assert fault_of(llama, tmp_path, child(PASSES)) is None


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The real process of a trial, whose verdicts lie in a folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if DEVICE.type == "cpu":
        assert os.environ["TRITON_INTERPRET"] == "1"
    return tmp_path / "serve_app" / "trials"


@long
def test_the_process_of_a_trial_finds_nothing_wrong(llama: Question, interpreted: Path) -> None:
    short = replace(llama, longest=18)
    assert fault_of(short) is None
    assert len(list(interpreted.glob("*.passed"))) == 1
    assert fault_of(short, command=("/no/such/program",)) is None  # it is remembered


@long
def test_and_says_what_failed_in_it(llama: Question, interpreted: Path) -> None:
    fault = fault_of(replace(llama, dtype="float8_e5m2"), command=COMMAND)
    assert fault == "KeyError: torch.float8_e5m2"
    assert not list(interpreted.glob("*.passed"))


@long
def test_it_ends_with_the_process_that_started_it(llama: Question, tmp_path: Path) -> None:
    (tmp_path / "question").write_bytes(replace(llama, longest=60, uses=llama.uses * 1000).to_json())
    started = f"""
import subprocess, sys
with open({str(tmp_path / "question")!r}, "rb") as question:
    made = subprocess.Popen({list(COMMAND)!r}, stdin=question, stderr=subprocess.PIPE)
print(made.pid, flush=True)
made.wait()
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([*child(started)], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        trial = psutil.Process(int(parent.stdout.readline()))
        # It has imported what it needs, and computes.
        deadline = time.monotonic() + WAIT_S
        while trial.num_threads() < 2 or trial.cpu_times().user < 4:
            assert trial.status() != psutil.STATUS_ZOMBIE
            assert time.monotonic() < deadline
            time.sleep(0.1)
        parent.kill()
    trial.wait(WAIT_S)


def settings(**more: Any) -> ModelConfig:
    return ModelConfig.model_validate(
        {"name": "tiny", "source": "nowhere", "engine": {"block_size": 16, "num_blocks": 16}} | more
    )


@pytest.mark.parametrize(("fault", "chosen"), [(None, "triton"), ("it is wrong", "cuda")])
def test_auto_is_triton_on_a_gpu_where_the_trial_found_nothing(
    fault: str | None, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Question] = []

    def find(question: Question) -> str | None:
        asked.append(question)
        return fault

    monkeypatch.setattr(choose, "fault_of", find)
    lines: list[str] = []
    model = tiny_model("llama").to(DEVICE)
    found = choose.choose_kernels(
        model, dtype=torch.float32, device=DEVICE, config=settings(), progress=lines.append
    )
    assert found == Choice(chosen, adapters=fault is None)
    assert [each.rank for each in asked] == [64] if fault is None else [64, 0]
    assert asked[0].block_size == 16
    assert ("it is wrong" in lines[-1]) == (fault is not None)


def test_kernels_that_are_wrong_for_adapters_alone_serve_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choose, "fault_of", lambda question: "it is wrong" if question.rank else None)
    lines: list[str] = []
    model = tiny_model("llama").to(DEVICE)
    found = choose.choose_kernels(
        model, dtype=torch.float32, device=DEVICE, config=settings(), progress=lines.append
    )
    assert found == Choice("triton", adapters=False)
    assert "it is wrong" in lines[1]
    assert "without adapters" in lines[1]


@pytest.mark.parametrize("part", ["experts", "states"])
def test_nor_are_they_left_out_for_experts_or_states_that_are_wrong(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        choose, "fault_of", lambda question: "it is wrong" if getattr(question, part) else None
    )
    lines: list[str] = []
    model = tiny_model("gpt_oss") if part == "experts" else tiny_stateful("lfm2")
    found = choose.choose_kernels(
        model.to(DEVICE), dtype=torch.float32, device=DEVICE, config=settings(), progress=lines.append
    )
    assert (found.attention, found.experts, found.states) == ("triton", part != "experts", part != "states")
    assert f"trying them without {part}" in lines[1]


def test_without_triton_auto_is_plain_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    lines: list[str] = []
    model = tiny_model("llama").to(DEVICE)
    found = choose.choose_kernels(
        model, dtype=torch.float32, device=DEVICE, config=settings(), progress=lines.append
    )
    assert found == Choice("cuda", adapters=False)
    assert "not installed" in lines[-1]


class OnAGpu:
    """A device of the type of a GPU, whose tensors are where the test's are."""

    type = "cuda"


def test_an_engine_asks_for_a_trial_where_the_settings_leave_the_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen: list[str] = []

    def choose_kernels(module: PreTrainedModel, **_: Any) -> Choice:
        chosen.append(type(module).__name__)
        return Choice("triton", adapters=True)

    class Made(Exception):
        pass

    def make_backend(name: str, device: object) -> None:
        raise Made(name)

    monkeypatch.setattr(choose, "choose_kernels", choose_kernels)
    monkeypatch.setattr(devices, "make_backend", make_backend)
    model = tiny_model("llama")

    def build(attention: str) -> str:
        with pytest.raises(Made) as made:
            assemble(
                model,
                dtype=torch.float32,
                device=OnAGpu(),  # type: ignore[arg-type]
                context_window=64,
                eos_token_ids=(2,),
                config=settings(attention=attention),
                progress=lambda _: None,
            )
        return str(made.value)

    assert build("auto") == "triton"
    assert build("cuda") == "cuda"
    assert build("triton") == "triton"
    assert chosen == ["LlamaForCausalLM"]
