"""`serve-app check`, on the demo models and on a hub that the real client asks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from serve_app.config import ModelConfig
from serve_app.models.catalogue import demo_folder
from tests.support.hub_server import COMMIT, hub_server
from tests.support.ranks import save
from tests.support.tiny_models import tiny_model


def test_it_says_how_a_model_is_served_and_the_lines_that_do_so(invoke) -> None:
    result = invoke(
        "check",
        "demo-chat",
        "--device",
        "cpu",
        "--memory",
        "1",
        "--quantization",
        "int8",
        "--max-model-len",
        "512",
    )
    assert result.exit_code == 0, result.output
    assert "LlamaForCausalLM, 2.2 million parameters: can be served" in result.stdout
    assert "fused, as Llama's" in result.stdout
    assert "1.5 KiB for a token" in result.stdout
    assert "1.0 GiB free beside a CPU" in result.stdout
    (application,) = yaml.safe_load(result.stdout.partition("\n\n")[2])
    config = ModelConfig.model_validate(application["args"])
    assert (config.quantization, config.engine.max_model_len) == ("int8", 512)


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_it_says_what_each_of_several_ranks_takes(invoke, family: str, tmp_path: Path) -> None:
    folder = save(tiny_model(family), tmp_path)
    arguments = ["--device", "cuda", "--memory", "8", "--tensor-parallel", "2"]
    arguments += ["--expert-parallel"] if family == "qwen3_moe" else []
    result = invoke("check", str(folder), *arguments)
    assert result.exit_code == 0, result.output
    assert "2, each with a part of every layer" in result.stdout
    (application,) = yaml.safe_load(result.stdout.partition("\n\n")[2])
    config = ModelConfig.model_validate(application["args"])
    assert (config.tensor_parallel, config.expert_parallel) == (2, family == "qwen3_moe")
    assert application["deployments"] == [{"name": "Model", "ray_actor_options": {"num_gpus": 2}}]


def test_it_says_what_a_stage_takes(invoke, tmp_path: Path) -> None:
    folder = save(tiny_model("llama"), tmp_path)
    stages = ["--tensor-parallel", "2", "--pipeline-parallel", "2"]
    result = invoke("check", str(folder), "--device", "cuda", "--memory", "8", *stages)
    assert result.exit_code == 0, result.output
    assert "2 stages of 2, each with some of the layers" in result.stdout
    (application,) = yaml.safe_load(result.stdout.partition("\n\n")[2])
    assert ModelConfig.model_validate(application["args"]).ranks == 4
    assert application["deployments"] == [{"name": "Model", "ray_actor_options": {"num_gpus": 4}}]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["no-such"], 1, "no demo model 'no-such'"),
        (["demo-chat", "--device", "cuda", "--memory", "0.001"], 1, "do not fit"),
        (["demo-chat", "--max-model-len", "5000"], 1, "beyond its context window of 1024"),
        (["demo-chat", "--device", "cpu", "--quantization", "fp8"], 2, "on a GPU"),
        (["./nowhere"], 1, "there is no folder"),
    ],
)
def test_a_refusal_has_a_reason_and_a_status(invoke, arguments: list[str], status: int, words: str) -> None:
    result = invoke("check", *arguments)
    assert result.exit_code == status
    assert words in result.output


@pytest.mark.full
def test_of_the_hub_no_weight_is_read(tmp_path: Path) -> None:
    """The command as it is, with the hub's own client."""
    index = json.dumps({"metadata": {}, "weight_map": {"a": "model-00001-of-00001.safetensors"}}).encode()
    files = {
        "config.json": (demo_folder("demo-chat") / "config.json").read_bytes(),
        "model.safetensors.index.json": index,
        "model-00001-of-00001.safetensors": b"no weights at all",
        "tokenizer.json": b"{}",
    }
    environment = {**os.environ, "HF_HOME": str(tmp_path)}
    environment.pop("HF_HUB_OFFLINE", None)
    with hub_server("someone/a-model", files) as address:
        done = subprocess.run(
            [sys.executable, "-m", "serve_app.cli", "check", "someone/a-model"],
            env=environment | {"HF_ENDPOINT": address},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    assert "can be served" in done.stdout
    assert "source: someone/a-model" in done.stdout
    assert COMMIT in done.stderr
    assert {path.name for path in tmp_path.rglob("snapshots/*/*")} == {
        "config.json",
        "model.safetensors.index.json",
    }
