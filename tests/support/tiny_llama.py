"""A tiny Llama with random weights and a real byte-level BPE, made in a temporary folder.

Enough of a model to run every path of text and engine in milliseconds.
"""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, PreTrainedTokenizerFast

SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
)
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = (
    "The quick brown fox jumps over the lazy dog. Hello, world! How are you today? "
    "Numbers 0 1 2 3 4 5 6 7 8 9 and some words in a row: one two three four five six seven. "
    "Ein Satz mit Umlauten: äöüß. 日本語の文。 Emoji 😀🎉 too. def f(x): return x + 1\n"
) * 4


def tiny_tokenizer(vocab_size: int = 384) -> PreTrainedTokenizerFast:
    """Every byte is a token, so any text round-trips."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        [CORPUS],
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=list(SPECIALS),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=SPECIALS[0], eos_token=SPECIALS[2], pad_token=SPECIALS[0]
    )
    fast.chat_template = TEMPLATE
    return fast


def tiny_config(vocab_size: int = 384) -> PretrainedConfig:
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
    )


def make_tiny_llama(folder: Path, config: PretrainedConfig | None = None, seed: int = 0) -> Path:
    """Save model and tokenizer to `folder`, with weights large enough that tokens differ clearly."""
    config = config or tiny_config()
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.2)
    model.save_pretrained(folder)
    tiny_tokenizer(config.vocab_size).save_pretrained(folder)
    return folder
