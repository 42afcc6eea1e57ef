"""Make a model with random weights and real shapes, with a tokenizer trained on local text.

Throughput depends on shapes, not on values, so no download is needed.

    python benchmarks/make_model.py smol135 build/models
"""

from __future__ import annotations

import argparse
import json
import sysconfig
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

BOS, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
IDS = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0}
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def smol135() -> PretrainedConfig:
    """The shape of SmolLM2-135M: 269 MB in bf16."""
    return LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=True,
        **IDS,
    )


def qwen06() -> PretrainedConfig:
    """The shape of Qwen3-0.6B: 1192 MB in bf16."""
    return Qwen3Config(
        vocab_size=151_936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=8192,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        tie_word_embeddings=True,
        **IDS,
    )


def hybrid08() -> PretrainedConfig:
    """The shape of Qwen3.5-0.8B's text part, three of four layers with a state: 1505 MB in bf16."""
    return Qwen3_5TextConfig(
        vocab_size=248_320,
        hidden_size=1024,
        intermediate_size=3584,
        num_hidden_layers=24,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=256,
        linear_num_key_heads=16,
        linear_num_value_heads=16,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
        max_position_embeddings=8192,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000_000.0, "partial_rotary_factor": 0.25},
        tie_word_embeddings=True,
        **IDS,
    )


def mixture2() -> PretrainedConfig:
    """A small mixture of Qwen3's kind, 8 of 32 experts for a token: 4.2 GB in bf16, 1.5 GB of them active."""
    return Qwen3MoeConfig(
        vocab_size=151_936,
        hidden_size=1024,
        intermediate_size=3072,
        moe_intermediate_size=768,
        num_experts=32,
        num_experts_per_tok=8,
        norm_topk_prob=True,
        num_hidden_layers=24,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=128,
        max_position_embeddings=8192,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        tie_word_embeddings=True,
        **IDS,
    )


SHAPES = {shape.__name__: shape for shape in (smol135, qwen06, hybrid08, mixture2)}


def corpus() -> Iterator[str]:
    """Python sources of this interpreter: plenty of text that every machine has."""
    roots = (Path(sysconfig.get_path("stdlib")), Path(torch.__file__).parent)
    for root in roots:
        for path in islice(sorted(root.rglob("*.py")), 3000):
            yield path.read_text(encoding="utf-8", errors="ignore")


def tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE of exactly `vocab_size` entries; fillers make up what training did not find."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, START, END],
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(corpus(), trainer)
    # Ordinary entries, as in a real vocabulary: libraries take seconds for added tokens by the ten thousand.
    state = json.loads(bpe.to_str())
    vocab = state["model"]["vocab"]
    vocab |= {f"filler{i}": i for i in range(len(vocab), vocab_size)}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)),
        bos_token=BOS,
        eos_token=END,
        pad_token=BOS,
        model_max_length=8192,
    )
    fast.chat_template = CHAT
    return fast


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("folder", type=Path, help="the model goes to FOLDER/SHAPE")
    args = parser.parse_args()
    config = SHAPES[args.shape]()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    target = args.folder / args.shape
    model.save_pretrained(target)
    tokenizer(config.vocab_size).save_pretrained(target)
    count = sum(p.numel() for p in model.parameters())
    print(f"{target}: {count / 1e6:.1f} M parameters")


if __name__ == "__main__":
    main()
