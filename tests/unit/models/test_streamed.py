"""Weights streamed to a device: the same model as loaded whole, with little of it in memory at a time."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Final

import psutil
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from serve_app.models import loader
from serve_app.models.errors import ModelLoadError
from serve_app.models.loader import read_weights
from serve_app.models.stored import StoredTensor, stored_tensors
from serve_app.models.streamed import StreamedTensor, streamed_tensors
from tests.support.tiny_models import tiny_config

CPU: Final = torch.device("cpu")
MIB: Final = 2**20


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """To a CPU too."""
    monkeypatch.setattr(loader, "streams_to", lambda device: True)


def saved(folder: Path, architecture: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny_config(architecture), dtype=torch.float32)
    model.save_pretrained(folder, max_shard_size="20KB")
    return model


def read(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    config = AutoConfig.from_pretrained(folder)
    return read_weights(AutoModelForCausalLM, folder, config, dtype, CPU, lambda line: None)


# Plain weights; a head that is the embedding; experts that are stacked as they are loaded.
@pytest.mark.parametrize("architecture", ["llama", "gemma2", "qwen3_moe"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_model_is_the_one_that_is_loaded_whole(
    tmp_path: Path, architecture: str, dtype: torch.dtype, request: pytest.FixtureRequest
) -> None:
    saved(tmp_path, architecture)
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    whole = read(tmp_path, dtype)
    request.getfixturevalue("streams")
    streamed = read(tmp_path, dtype)
    assert type(streamed) is type(whole)
    for one, other in ((streamed, whole), (whole, streamed)):
        state = other.state_dict()
        assert all(torch.equal(each, state[name]) for name, each in one.state_dict().items())
    assert {each.dtype for each in streamed.parameters()} == {dtype}
    ids = torch.arange(3, 20)[None]
    assert torch.equal(streamed(ids).logits, whole(ids).logits)


@pytest.mark.usefixtures("streams")
def test_files_that_end_early_are_refused(tmp_path: Path) -> None:
    saved(tmp_path, "llama")
    path = sorted(tmp_path.glob("*.safetensors"))[1]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelLoadError, match=r"ends within model\.layers"):
        read(tmp_path)
    path.write_bytes(b"no header at all")
    with pytest.raises(ModelLoadError, match="is no safetensors file"):
        read(tmp_path)


@pytest.mark.usefixtures("streams")
def test_weights_that_do_not_fit_are_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, "llama")

    def full(*_: object, **options: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(StreamedTensor, "to", full)
    with pytest.raises(ModelLoadError, match=r"do not fit.*a larger part of the GPU, or choose a smaller"):
        read(tmp_path)


class Watched(StreamedTensor):
    """Notes the memory of this process whenever a tensor was read."""

    peak = 0

    def to(self, device: object = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        moved = super().to(device, dtype)
        Watched.peak = max(Watched.peak, psutil.Process().memory_info().rss)
        return moved


def test_the_machine_holds_less_than_a_file_of_them(tmp_path: Path) -> None:
    size = {"hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 12, "head_dim": 256}
    config = tiny_config("llama", **size)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    copy.deepcopy(model).to_empty(device="cpu").save_pretrained(tmp_path, max_shard_size="60MB")
    files = [path.stat().st_size for path in tmp_path.glob("*.safetensors")]
    assert len(files) > 3
    gone = torch.device("meta")  # takes no memory of the machine, as a GPU
    tensors: dict[str, StreamedTensor] = {each.name: Watched(each, gone) for each in stored_tensors(tmp_path)}
    assert tensors.keys() == streamed_tensors(stored_tensors(tmp_path), gone).keys()
    before = psutil.Process().memory_info().rss
    type(model).from_pretrained(None, config=config, state_dict=tensors, dtype=torch.bfloat16)
    assert Watched.peak
    assert Watched.peak - before < max(files) + 16 * MIB < sum(files) // 2


def test_headers_name_every_tensor_and_its_place(tmp_path: Path) -> None:
    model = saved(tmp_path, "llama")
    stored = {each.name: each for each in stored_tensors(tmp_path)}
    expected = {name: tuple(each.shape) for name, each in model.state_dict().items()}
    assert {name: each.shape for name, each in stored.items()} == expected
    one = stored["model.norm.weight"]
    assert one == StoredTensor("model.norm.weight", "F32", (32,), one.path, one.start, 128)
    with one.path.open("rb") as file:
        file.seek(one.start)
        assert file.read(128) == model.model.norm.weight.detach().numpy().tobytes()
