"""Trains demo-chat's tokenizer: byte-level BPE with single digits and separate spaces.

A space is a token of its own, except before the most frequent words. So a rare
word is cut the same way after a space, after a quote and at the start of an
answer, and copying it is copying tokens, which is what a small model can learn.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from recipes.demo_chat.corpus import dialogues, documents
from serve_app.models.catalogue import DEMO_FOLDER

FOLDER: Final = DEMO_FOLDER / "demo-chat"  # every version has the tokenizer of the first
TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
CONTEXT: Final = 1024
SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS: Final = ("<tools>", "</tools>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_SPACE: Final = "Ġ"  # how byte-level BPE writes a space
_PUNCTUATION: Final = r'[^\s\p{L}\p{N}]+(?: ["{\[]+)?'  # JSON's `": "` is one piece
_LEARN: Final = rf"\p{{L}}+|\p{{N}}|{_PUNCTUATION}|\s"
_USE: Final = rf" ?\p{{L}}+|\p{{N}}| ?{_PUNCTUATION}|\s"


def train_tokenizer(texts: list[str], *, vocabulary: int, spaced: int) -> Tokenizer:
    """Learn `vocabulary` tokens, `spaced` of them frequent words with the space before them."""
    fixed = len(SPECIAL) + len(MARKERS)
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = _pieces(_LEARN)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - spaced - fixed,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    learned: dict[str, Any] = json.loads(learner.to_str())["model"]
    vocab: dict[str, int] = learned["vocab"]
    merges = [tuple(merge) for merge in learned["merges"]]
    for piece in _frequent_after_space(texts, vocab, spaced):
        vocab[_SPACE + piece] = len(vocab)
        merges.append((_SPACE, piece))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = _pieces(_USE)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKERS])
    return tokenizer


def folder_of(version: int) -> Path:
    """Where a version of demo-chat is committed."""
    return FOLDER if version == 1 else FOLDER.with_name(f"{FOLDER.name}-v{version}")


def copy_to(folder: Path) -> None:
    """Give a model folder the committed tokenizer and chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    if not folder.samefile(FOLDER):
        for name in TOKENIZER_FILES:
            shutil.copyfile(FOLDER / name, folder / name)


def load(folder: Path = FOLDER) -> PreTrainedTokenizerBase:
    """The committed tokenizer with its chat template."""
    return PreTrainedTokenizerFast.from_pretrained(folder)


def _pieces(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip


def _frequent_after_space(texts: list[str], vocab: dict[str, int], count: int) -> list[str]:
    splitter = _pieces(_USE)
    counts = Counter(piece for text in texts for piece, _ in splitter.pre_tokenize_str(text))
    ranked = (piece[1:] for piece, _ in counts.most_common() if piece.startswith(_SPACE) and len(piece) > 1)
    # capitalised words are names and cities: those are copied
    fit = (word for word in ranked if word in vocab and _SPACE + word not in vocab and not word[0].isupper())
    return list(islice(fit, count))


def sample(seed: int, count: int) -> list[str]:
    """Text to learn from: every turn and tool of `count` dialogues, and documents."""
    texts = ["".join(piece.text for piece in document) for document in documents(seed, count)]
    for dialogue in dialogues(seed, count):
        texts += [json.dumps(tool["function"], ensure_ascii=False) for tool in dialogue.tools]
        for message in dialogue.messages():
            texts.append(
                message["content"] or json.dumps(message["tool_calls"][0]["function"], ensure_ascii=False)
            )
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dialogues", type=int, default=40_000)
    parser.add_argument("--vocabulary", type=int, default=3072)
    parser.add_argument("--spaced", type=int, default=320)
    options = parser.parse_args()
    texts = sample(options.seed, options.dialogues) + ["system user assistant tool"] * 100
    tokenizer = train_tokenizer(texts, vocabulary=options.vocabulary, spaced=options.spaced)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    wrapped.save_pretrained(FOLDER)
    print(f"{len(tokenizer.get_vocab())} tokens in {FOLDER}")


if __name__ == "__main__":
    main()
