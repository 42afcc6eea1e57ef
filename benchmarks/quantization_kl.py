"""How far quantised weights and a KV cache of codes move a model from itself in float32, without a cache:
Kullback-Leibler divergence, in nats.

    python benchmarks/quantization_kl.py [MODEL] [--tokens 40] [--prompts TEXT ...]

MODEL is a local folder with a chat template; by default demo-chat. The model in float32 answers each prompt
greedily. Then prompt and answer are computed with weights of float32, bfloat16, int8 and int4, and with each
`engine.kv_cache_dtype`. Prints a Markdown table: the mean and the largest divergence over all tokens, and for
how many of them the most likely next token is the same.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from serve_app.engine.attention import LayerSpec
from serve_app.engine.attention.cpu import CpuAttention
from serve_app.engine.cpu.fused import accelerate_cpu
from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.kernels.quantized import Quantization
from serve_app.engine.model.forward import active
from serve_app.engine.weights.formats import FORMATS
from serve_app.engine.weights.plain import PLAIN
from serve_app.models.catalogue import DEMO_FOLDER

BLOCK: Final = 16
PROMPTS: Final = (
    "What is the capital of France?",
    "2 + 2 =",
    "What is the capital of Japan?",
    "Hello!",
    "Give me JSON for a person named Anna, 30",
    "What is 17 + 25?",
    "What is the capital of Italy? Answer in one word.",
)


def log_probabilities(model: PreTrainedModel, ids: list[int], *, codes: bool) -> torch.Tensor:
    """Of the next token after each of `ids`: [T, V]. `codes`: with a cache of codes."""
    config, count = model.config, len(ids)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    blocks = -(-count // BLOCK)
    backend = CpuAttention()
    layers = (LayerSpec(config.num_key_value_heads, size, size),) * config.num_hidden_layers
    backend.allocate(layers, blocks, BLOCK, model.dtype, torch.device("cpu"), codes=codes)
    context = ForwardContext(
        query_start=torch.tensor([0, count], dtype=torch.int32),
        context_lens=torch.tensor([count], dtype=torch.int32),
        block_tables=torch.arange(blocks, dtype=torch.int32)[None],
        slots=torch.arange(count),
        query_lens=(count,),
        lens=(count,),
        block_size=BLOCK,
    )
    at = torch.arange(count)
    with torch.inference_mode(), active(backend, context):
        out = model(input_ids=torch.tensor([ids]), position_ids=at[None], use_cache=False, logits_to_keep=at)
    logits: torch.Tensor = out.logits[0].float()
    return logits.log_softmax(-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, default=DEMO_FOLDER / "demo-chat")
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--prompts", nargs="+", default=PROMPTS, metavar="TEXT")
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    wide = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    answers, wanted = [], []
    for prompt in options.prompts:
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False
        )
        answer = wide.generate(torch.tensor([ids]), max_new_tokens=options.tokens, do_sample=False)
        answers.append(answer[0].tolist())
        with torch.inference_mode():
            wanted.append(wide(answer).logits[0].log_softmax(-1))
    print("| weights | cache | mean KL | largest KL | same token |\n|---|---|---|---|---|")
    for name in ("float32", "bfloat16", *Quantization):
        dtype = torch.float32 if name == "float32" else torch.bfloat16
        model = AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype).eval()
        accelerate_cpu(model, dtype, weights=FORMATS.get(name, PLAIN))
        for cache in ("auto", "int8"):
            found = [log_probabilities(model, ids, codes=cache == "int8") for ids in answers]
            pairs = list(zip(wanted, found, strict=True))
            divergence = torch.cat([(want.exp() * (want - got)).sum(-1) for want, got in pairs])
            same = torch.cat([want.argmax(-1) == got.argmax(-1) for want, got in pairs])
            print(
                f"| {name} | {cache} | {divergence.mean():.5f} | {divergence.max():.3f} "
                f"| {int(same.sum())} of {len(same)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
