"""The demo models and their adapter for as many ranks as `--tensor-parallel` says.

In the originals three KV heads serve six heads. For two ranks each head gets keys and values of its own: the
answers stay the same.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

from safetensors.torch import load_file, save_file

from serve_app.models.catalogue import DEMO_FOLDER
from tests.support.several_ranks import ranks

HEAD: Final = 32  # numbers
TIMES: Final = 2  # heads that share keys and values
_FOLDER: Final = tempfile.TemporaryDirectory()


def demo_settings() -> dict[str, Any]:
    """Settings of the demo model with the adapter `pirate`."""
    if ranks() == 1:
        return {"adapters": {"pirate": "demo:demo-lora"}}
    return {
        "source": str(demo_path()),
        "adapters": {"pirate": str(_divisible() / "demo-lora")},
        "tensor_parallel": ranks(),
    }


def demo_path(name: str = "demo-chat") -> Path:
    """The folder of the demo model called `name`."""
    return (DEMO_FOLDER if ranks() == 1 else _divisible()) / name


@cache
def _divisible() -> Path:
    """Copies of the demo models, in a folder that is there as long as this process."""
    folder = Path(_FOLDER.name)
    for name in ("demo-chat", "demo-chat-v2"):
        shutil.copytree(DEMO_FOLDER / name, folder / name)
        config = folder / name / "config.json"
        settings = json.loads(config.read_text())
        settings["num_key_value_heads"] *= TIMES
        config.write_text(json.dumps(settings))
        _repeat(folder / name / "model.safetensors", ("k_proj.weight", "v_proj.weight"))
    shutil.copytree(DEMO_FOLDER / "demo-lora", folder / "demo-lora")
    adapter = folder / "demo-lora" / "adapter_model.safetensors"
    _repeat(adapter, ("k_proj.lora_B.weight", "v_proj.lora_B.weight"))
    return folder


def _repeat(path: Path, endings: tuple[str, ...]) -> None:
    """Repeat the rows [KV heads x HEAD, K] of each KV head in the tensors with these endings."""
    tensors = load_file(path)
    for name, tensor in tensors.items():
        if name.endswith(endings):
            heads = tensor.view(-1, HEAD, tensor.shape[1])
            tensors[name] = heads.repeat_interleave(TIMES, 0).reshape(-1, tensor.shape[1])
    save_file(tensors, path, metadata={"format": "pt"})
