"""Measures demo-lora on demo-chat's held-out dialogues: how often it speaks as taught.

As the measure of demo-chat, with the answers a pirate would give: an answer is right when
it is exactly the expected one and its turn ends by itself. Arithmetic is float32 on the
committed weights, the adapter's product added to the model's matrices.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from recipes.demo_chat.corpus import dialogues
from recipes.demo_chat.evaluate import Chat, evaluate, table
from recipes.demo_lora.pirate import as_pirate
from recipes.demo_lora.train import FOLDER


def merge(chat: Chat, folder: Path) -> None:
    """Add the adapter in `folder` to the model of `chat`."""
    config = json.loads((folder / "adapter_config.json").read_text("utf-8"))
    scale = config["lora_alpha"] / config["r"]
    tensors = {
        name: tensor.float() for name, tensor in load_file(folder / "adapter_model.safetensors").items()
    }
    for name, a in tensors.items():
        if name.endswith(".lora_A.weight"):
            path = name.removesuffix(".lora_A.weight")
            linear = chat.model.get_submodule(path.removeprefix("base_model.model."))
            with torch.no_grad():
                linear.weight += tensors[f"{path}.lora_B.weight"] @ a * scale


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--adapter", type=Path, default=FOLDER)
    parser.add_argument("--without", action="store_true", help="demo-chat alone, to compare")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dialogues", type=int, default=500)
    parser.add_argument("--wrong", type=int, default=2, help="wrong answers to show of each skill")
    options = parser.parse_args()
    chat = Chat()
    if not options.without:
        merge(chat, options.adapter)
    scores = evaluate(chat, as_pirate(dialogues(options.seed, options.dialogues, held=True)))
    for skill, score in sorted(scores.items()):
        for line in score.wrong[: options.wrong]:
            print(f"{skill}: {line}")
    print(table(scores))


if __name__ == "__main__":
    main()
