"""Weights that are quantised on a GPU from their files, layer by layer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from serve_app.codes.tensor import CodedTensor, plain_weights
from serve_app.config import EngineConfig
from serve_app.engine.attention.triton.backend import TritonAttention
from serve_app.engine.cuda.fused import accelerate_cuda
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.weights.formats import FORMATS
from serve_app.models.errors import ModelLoadError
from serve_app.models.loader import read_config, read_weights
from tests.support.mixtures import alone
from tests.support.tiny_models import BASE, BLOCK, make_model, tiny_config
from tests.support.triton_interpreter import long

pytestmark = pytest.mark.usefixtures("one_thread")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHAPE = {**BASE, "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "head_dim": 32}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_model(tiny_config("qwen3", **SHAPE, tie_word_embeddings=False)).save_pretrained(tmp_path)
    return tmp_path


def read(folder: Path, *, late: bool) -> torch.nn.Module:
    config = read_config(folder)
    given = AutoModelForCausalLM, folder, config, torch.float32, DEVICE, lambda line: None, None, late
    return read_weights(*given)


@long
def test_they_give_the_codes_of_weights_that_were_there(folder: Path) -> None:
    results = []
    for late in (True, False):
        model = read(folder, late=late)
        coded = [name for name, each in model.named_parameters() if isinstance(each, CodedTensor)]
        assert len(coded) == (14 if late else 0)  # all but the embedding, the head and norms
        said: list[str] = []
        accelerate_cuda(model, torch.float32, FORMATS["int8"], progress=said.append)  # type: ignore[arg-type]
        assert not any("codes" in line for line in said)
        assert plain_weights(model) == (0, 0)
        runner = ModelRunner(
            model,  # type: ignore[arg-type]
            backend=TritonAttention(),
            dtype=torch.float32,
            device=DEVICE,
            config=EngineConfig(block_size=BLOCK, num_blocks=32),
        )
        results.append(alone(runner, [5, 7, 11]))
    assert torch.equal(*results)


def test_a_number_that_is_not_finite_is_refused_when_it_is_read(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 4] = torch.nan
    model.save_pretrained(folder)
    late = read(folder, late=True)
    with pytest.raises(ModelLoadError, match=r"1\.mlp\.up_proj\.weight holds numbers that are not finite"):
        accelerate_cuda(late, torch.float32, FORMATS["int8"])  # type: ignore[arg-type]
