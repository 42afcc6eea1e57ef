"""On a GPU: a trial of real shapes finds nothing wrong with the kernels, and `auto` then uses them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from serve_app.config import ModelConfig
from serve_app.engine.assemble import assemble
from serve_app.engine.cuda.trial.question import ask_about
from serve_app.engine.fused.forward import FusedForward

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CUDA = torch.device("cuda")
HEADS = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 2}
SHAPES: dict[str, dict[str, Any]] = {
    "Llama-3.1-8B": {"hidden_size": 4096, "intermediate_size": 14336},
    "Qwen3-0.6B": {"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16},
}


def model_of(name: str, dtype: torch.dtype) -> PreTrainedModel:
    shape = {"vocab_size": 4096, "max_position_embeddings": 8192, **HEADS, **SHAPES[name]}
    torch.manual_seed(0)
    with CUDA:
        made: PreTrainedModel = (
            LlamaForCausalLM(LlamaConfig(**shape))
            if name.startswith("Llama")
            else Qwen3ForCausalLM(Qwen3Config(**shape))
        )
    return made.eval().to(dtype)


@pytest.mark.parametrize("codes", ["auto", "int8", "fp8"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_a_trial_of_real_shapes_finds_nothing_wrong(name: str, dtype: torch.dtype, codes: str) -> None:
    from serve_app.engine.cuda.trial.compare import find_fault

    model = model_of(name, dtype)
    assert find_fault(ask_about(model, dtype=dtype, device=CUDA, block_size=32, codes=codes)) is None


def test_auto_is_triton_after_a_trial_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from serve_app.engine.attention.triton.backend import TritonAttention

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    lines: list[str] = []
    engine = assemble(
        model_of("Qwen3-0.6B", torch.bfloat16),
        dtype=torch.bfloat16,
        device=CUDA,
        context_window=8192,
        eos_token_ids=(2,),
        config=ModelConfig.model_validate(
            {"name": "tried", "source": "nowhere", "engine": {"num_blocks": 600, "max_adapters": 0}}
        ),
        progress=lines.append,
    )
    assert any("give plain torch's results" in line for line in lines), lines
    runner: Any = engine._runner
    assert isinstance(runner._runner.backend, TritonAttention)
    assert isinstance(runner._runner.module.forward, FusedForward)
    assert list((tmp_path / "serve_app" / "trials").glob("*.passed"))
