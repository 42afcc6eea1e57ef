"""Trains demo-lora, a low-rank adapter of demo-chat, and writes it as a folder in PEFT's layout.

The model itself stays as it is: of each linear only two thin matrices learn. As in the
recipe of demo-chat a run is a number of steps, so that a seed gives the same adapter again.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional
from transformers import LlamaForCausalLM

from recipes.demo_chat.batches import Row, chat_row, grouped
from recipes.demo_chat.corpus import dialogues
from recipes.demo_chat.tokenizer import CONTEXT, load
from recipes.demo_chat.tokenizer import FOLDER as BASE
from recipes.demo_chat.train import batch_loss
from recipes.demo_lora.pirate import as_pirate

FOLDER: Final = BASE.parent / "demo-lora"
TARGETS: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

_POOL: Final = 2048  # dialogues drawn at a time
_WARM_UP: Final = 0.05  # of all steps


class LowRankLinear(nn.Module):
    """A frozen linear plus `scale` times a product of two thin matrices, the second of which starts at 0."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.empty(rank, base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., K] -> [..., N]."""
        delta = functional.linear(functional.linear(x, self.a), self.b)
        return self.base(x) + delta * self.scale  # type: ignore[no-any-return]


def adapt(model: LlamaForCausalLM, rank: int, alpha: float) -> dict[str, LowRankLinear]:
    """Freeze `model` and give every linear of its layers an adapter; returns them by module name."""
    model.requires_grad_(False)
    adapted: dict[str, LowRankLinear] = {}
    for path, module in list(model.named_modules()):
        parent, _, name = path.rpartition(".")
        if isinstance(module, nn.Linear) and name in TARGETS:
            adapted[path] = LowRankLinear(module, rank, alpha)
            setattr(model.get_submodule(parent), name, adapted[path])
    return adapted


def save(adapted: dict[str, LowRankLinear], rank: int, alpha: float, folder: Path) -> None:
    """Write adapter_config.json and adapter_model.safetensors, in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "demo-chat",
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(TARGETS),
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    tensors = {}
    for path, module in adapted.items():
        tensors[f"base_model.model.{path}.lora_A.weight"] = module.a.detach().bfloat16()
        tensors[f"base_model.model.{path}.lora_B.weight"] = module.b.detach().bfloat16()
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def train(seed: int, steps: int, tokens: int, rank: int, rate: float, output: Path) -> None:
    """`steps` steps of a batch of `tokens` tokens each."""
    torch.manual_seed(seed)
    tokenizer = load()
    model = LlamaForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    alpha = 2.0 * rank
    adapted = adapt(model, rank, alpha)

    def rows(pool: int) -> list[Row]:
        found = []
        for dialogue in as_pirate(dialogues(pool, _POOL)):
            text = tokenizer.apply_chat_template(
                dialogue.messages(), tools=dialogue.tools or None, tokenize=False
            )
            found.append(chat_row(tokenizer, str(text)))
        return [row for row in found if len(row.ids) <= CONTEXT]

    learning = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=rate, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _scale(step, steps))
    source = grouped(tokenizer, rows, seed, tokens)
    started, smooth = time.monotonic(), 0.0
    for step in range(steps):
        batch = next(source)
        loss = batch_loss(model, batch) / batch.learnt[:, 1:].sum()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(learning, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        smooth = loss.item() if step == 0 else 0.95 * smooth + 0.05 * loss.item()
        if step % 25 == 0 or step == steps - 1:
            print(f"step {step} loss {smooth:.4f} {time.monotonic() - started:.0f} s", flush=True)
        if step % 100 == 99 or step == steps - 1:
            save(adapted, rank, alpha, output)


def _scale(step: int, steps: int) -> float:
    warm = max(1.0, steps * _WARM_UP)
    return min((step + 1) / warm, 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=1600, help="of one batch, padding included")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rate", type=float, default=0.002)
    parser.add_argument("--output", type=Path, default=FOLDER)
    options = parser.parse_args()
    train(options.seed, options.steps, options.tokens, options.rank, options.rate, options.output)


if __name__ == "__main__":
    main()
