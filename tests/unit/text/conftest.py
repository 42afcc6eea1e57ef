"""Small tokenizers of each family, trained on the spot and saved as model folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from serve_app.text.tokens.tokenizer import Tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog, again and again.",
    "def add(a, b):\n    return a + b\n",
    "Größe, naïve café, 日本語のテキスト, привет мир, 😀🎉👩‍👩‍👧",
    "system user assistant tool im_start im_end",
] * 4

CHATML = """{%- if tools %}<|im_start|>system
{{ messages[0].content if messages[0].role == 'system' else '' }}
# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif -%}
{%- for message in messages %}
{%- if message.role not in ['system', 'user', 'assistant', 'tool'] %}
{{- raise_exception('Only system, user, assistant and tool messages are known.') }}
{%- endif %}
{%- if not (tools and loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\n' }}
{%- if message.name %}{{ '[' + message.name + '] ' }}{% endif %}
{{- message.content | trim }}
{%- if message.tool_calls %}{% for call in message.tool_calls %}
<tool_call>{{ call.function | tojson }}</tool_call>
{%- endfor %}{% endif %}
{{- '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
]


def save(folder: Path, backend: tokenizers.Tokenizer, config: dict[str, Any]) -> Path:
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False} | config
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def byte_level_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Byte-level BPE with a ChatML template, as Qwen and most others have it."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens(["<tool_call>", "</tool_call>"])
    folder = save(
        tmp_path_factory.mktemp("tokenizers") / "byte_level",
        backend,
        {"eos_token": "<|im_end|>", "pad_token": {"content": "<|endoftext|>", "__type": "AddedToken"}},
    )
    (folder / "chat_template.jinja").write_text(CHATML)
    return folder


@pytest.fixture(scope="session")
def sentencepiece_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """BPE with byte fallback and the rules of the Llama 2 family."""
    learner = tokenizers.Tokenizer(models.BPE())
    learner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    learner.train_from_iterator(CORPUS[:2] * 4, trainers.BpeTrainer(vocab_size=200, show_progress=False))
    learned = json.loads(learner.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁▁", "▁▁▁"]
    pieces += [piece for piece in learned["vocab"] if piece not in pieces]
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(pieces)},
            merges=[tuple(merge) for merge in learned["merges"]],
            byte_fallback=True,
            fuse_unk=True,
            unk_token="<unk>",
        )
    )
    backend.normalizer = learner.normalizer
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    backend.add_special_tokens(["<unk>", "<s>", "</s>", "▁<PRE>", "▁<SUF>", "▁<MID>"])
    template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}{% endfor %}"
    return save(
        tmp_path_factory.mktemp("tokenizers") / "sentencepiece",
        backend,
        {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": template},
    )


@pytest.fixture(scope="session")
def metaspace_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unigram with byte fallback and a Metaspace decoder, which drops the marks of a text's first token."""
    pieces = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁▁"]
    pieces += ["▁the", "▁a", "quick", "fox", *"abcdefghijklmnopqrstuvwxyz"]
    backend = tokenizers.Tokenizer(
        models.Unigram([(piece, -float(i)) for i, piece in enumerate(pieces)], unk_id=0, byte_fallback=True)
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens(["</s>"])
    return save(tmp_path_factory.mktemp("tokenizers") / "metaspace", backend, {"eos_token": "</s>"})


@pytest.fixture(scope="session")
def wordpiece_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder that looks at neighbours."""
    words = ["[UNK]", "the", "fox", "##es", "##y", "jump", "##s", ",", "a"]
    backend = tokenizers.Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece(cleanup=False)
    return save(tmp_path_factory.mktemp("tokenizers") / "wordpiece", backend, {"unk_token": "[UNK]"})


@pytest.fixture(scope="session")
def byte_level(byte_level_folder: Path) -> Tokenizer:
    return Tokenizer.load(byte_level_folder)


@pytest.fixture(scope="session")
def sentencepiece(sentencepiece_folder: Path) -> Tokenizer:
    return Tokenizer.load(sentencepiece_folder)


@pytest.fixture(scope="session")
def metaspace(metaspace_folder: Path) -> Tokenizer:
    return Tokenizer.load(metaspace_folder)


@pytest.fixture(scope="session")
def wordpiece(wordpiece_folder: Path) -> Tokenizer:
    return Tokenizer.load(wordpiece_folder)


@pytest.fixture(params=["byte_level", "sentencepiece", "metaspace"])
def exact_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """Each tokenizer whose tokens are bytes."""
    tokenizer: Tokenizer = request.getfixturevalue(request.param)
    return tokenizer
