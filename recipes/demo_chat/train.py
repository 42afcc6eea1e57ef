"""Trains a version of demo-chat on the recipe's corpus and writes the model folder.

The length of a run is its number of steps, not its time, so that a seed
gives the same model again.
"""

from __future__ import annotations

import argparse
import math
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import torch
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from recipes.demo_chat.batches import Batch, batches
from recipes.demo_chat.corpus import ADDED
from recipes.demo_chat.muon import Muon
from recipes.demo_chat.tokenizer import CONTEXT, copy_to, folder_of, load

_WARM_UP: Final = 0.02  # of all steps
_ADAM_SHARE: Final = 0.3  # AdamW's rate, as a share of Muon's


def new_model(tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    """A Llama of about two million parameters."""
    end, text_end = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        rope_theta=10_000.0,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=text_end,
    )
    return LlamaForCausalLM(config)


def batch_loss(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    """Summed loss of the learnt tokens; logits are made only where one is predicted."""
    hidden = model.model(input_ids=batch.ids, use_cache=False).last_hidden_state  # [B, T, D]
    wanted = batch.learnt[:, 1:]
    logits = model.lm_head(hidden[:, :-1][wanted])  # [N, V]
    return cross_entropy(logits, batch.ids[:, 1:][wanted], reduction="sum")


def gradients(model: LlamaForCausalLM, batch: Batch) -> tuple[float, tuple[torch.Tensor, ...]]:
    """Summed loss and its gradients; several threads may do this on one model."""
    loss = batch_loss(model, batch)
    return loss.item(), torch.autograd.grad(loss, list(model.parameters()))


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write the weights in bfloat16, as they are served, and their configuration."""
    small = LlamaForCausalLM(model.config)
    small.load_state_dict(model.state_dict())
    end, text_end = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    small.generation_config = GenerationConfig(eos_token_id=[end, text_end], pad_token_id=text_end)
    small.to(torch.bfloat16).save_pretrained(folder)


def train(
    version: int,
    seed: int,
    steps: int,
    tokens: int,
    accumulate: int,
    rate: float,
    initial: Path | None,
    output: Path,
) -> None:
    """`steps` steps of `accumulate` batches of `tokens` tokens each."""
    torch.manual_seed(seed)
    tokenizer = load()
    copy_to(output)
    model = new_model(tokenizer)
    if initial is not None:
        model.load_state_dict(LlamaForCausalLM.from_pretrained(initial, dtype=torch.float32).state_dict())
    model.train()
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    optimizers: list[torch.optim.Optimizer] = [
        Muon(matrices, lr=rate),
        torch.optim.AdamW(others, lr=rate * _ADAM_SHARE, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]
    schedule = [torch.optim.lr_scheduler.LambdaLR(o, lambda step: _scale(step, steps)) for o in optimizers]
    source = batches(tokenizer, seed, tokens, version)
    workers = ThreadPoolExecutor(accumulate, initializer=torch.set_num_threads, initargs=(1,))
    started, seen, smooth = time.monotonic(), 0, 0.0
    for step in range(steps):
        drawn = [next(source) for _ in range(accumulate)]
        count = sum(int(batch.learnt[:, 1:].sum()) for batch in drawn)
        # a thread a batch: on a busy machine they wait for each other once a step, not once an operation
        losses, parts = zip(*workers.map(lambda batch: gradients(model, batch), drawn), strict=True)
        total = sum(losses) / count
        for parameter, *gradient in zip(model.parameters(), *parts, strict=True):
            parameter.grad = torch.stack(gradient).sum(0).div_(count)
        for optimizer, scheduler in zip(optimizers, schedule, strict=True):
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad(set_to_none=True)
        seen += sum(batch.ids.numel() for batch in drawn)
        smooth = total if step == 0 else 0.95 * smooth + 0.05 * total
        if step % 25 == 0 or step == steps - 1:
            took = time.monotonic() - started
            print(f"step {step} loss {smooth:.4f} tokens {seen} {seen / took:.0f}/s {took:.0f} s", flush=True)
        if step % 200 == 199 or step == steps - 1:
            save(model, tokenizer, output)


def _scale(step: int, steps: int) -> float:
    warm = max(1.0, steps * _WARM_UP)
    return min((step + 1) / warm, 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", type=int, choices=ADDED, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--tokens", type=int, default=1400, help="of one batch, padding included")
    parser.add_argument("--accumulate", type=int, default=3, help="batches in a step, a thread each")
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--initial", type=Path, help="model folder to go on from")
    parser.add_argument("--output", type=Path, help="model folder to write; none: that of the version")
    options = parser.parse_args()
    train(
        options.version,
        options.seed,
        options.steps,
        options.tokens,
        options.accumulate,
        options.rate,
        options.initial,
        options.output or folder_of(options.version),
    )


if __name__ == "__main__":
    main()
