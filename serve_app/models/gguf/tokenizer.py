"""The tokenizer of a GGUF file, as the files of a tokenizer in transformers' layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from serve_app.models.errors import ModelLoadError
from serve_app.models.gguf.splits import SPLITS

_UNKNOWN, _CONTROL, _USER, _BYTE = 2, 3, 4, 6  # types of tokens
_SPACE: Final = "\u2581"
_NAMED: Final = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
_ENDS: Final = ("eos_token_id", "eot_token_id", "eom_token_id")
# Tokens that end an answer although no setting may name them, as llama.cpp has them.
_END_TOKENS: Final = frozenset(
    {
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>"),
        *("<|eom_id|>", "<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>"),
        *("<｜end▁of▁sentence｜>", "[e~[", "</s>"),
    }
)
_TEMPLATE: Final = "tokenizer.chat_template"
_ORDERED: Final = ("gemma", "gemma2", "gemma3")  # whose scores are not the order of their merges
_BESIDE: Final = "put the tokenizer.json of the model's own repository beside the file"


class Vocabulary:
    """The settings of a tokenizer. Raises ModelLoadError if they are missing or contradict each other."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self._settings = settings
        self.tokens: list[str] = self.value("tokens", [])
        self.types: list[int] = self.value("token_type", [1] * len(self.tokens))
        self.scores: list[float] = self.value("scores", [0.0] * len(self.tokens))
        if not self.tokens or not all(isinstance(each, str) for each in self.tokens):
            raise self.error("it has no tokens")
        if len(self.types) != len(self.tokens) or len(self.scores) != len(self.tokens):
            raise self.error(
                f"{len(self.tokens)} tokens have {len(self.types)} types, {len(self.scores)} scores"
            )
        if len(set(self.tokens)) != len(self.tokens):
            raise self.error("it has a token twice")

    def value(self, name: str, default: Any = None) -> Any:
        return self._settings.get(f"tokenizer.ggml.{name}", default)

    def error(self, reason: str) -> ModelLoadError:
        return ModelLoadError(f"the tokenizer in {self.path} cannot be used: {reason}; {_BESIDE}")

    def named(self, name: str) -> int | None:
        """The id of a token that a setting names; None if there is none."""
        found = self.value(name)
        if found is None:
            return None
        if type(found) is not int or not 0 <= found < len(self.tokens):
            raise self.error(f"its {name} is {found!r}")
        return found

    def of_type(self, *kinds: int) -> list[int]:
        return [number for number, kind in enumerate(self.types) if kind in kinds]


def tokenizer_files(path: Path, settings: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    """The contents of JSON files by name, for the settings of the file `path`.

    Raises ModelLoadError for a tokenizer that is not read here.
    """
    vocabulary = Vocabulary(path, settings)
    kind = vocabulary.value("model")
    try:
        if kind == "gpt2":
            tokenizer = _byte_level(vocabulary)
        elif kind == "llama":
            tokenizer = _sentencepiece(vocabulary, by_order=architecture in _ORDERED)
        else:
            raise vocabulary.error(f"its kind is {kind!r}, and only 'gpt2' and 'llama' are read")
        _add_tokens(tokenizer, vocabulary)
    except ModelLoadError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise vocabulary.error(str(error)) from error
    named = {name: vocabulary.named(setting) for name, setting in _NAMED.items()}
    _add_ends(tokenizer, vocabulary, named)
    texts = {name: vocabulary.tokens[number] for name, number in named.items() if number is not None}
    return {
        "tokenizer.json": tokenizer.to_str(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **texts,
            **_templates(settings),
        },
        "generation_config.json": {"bos_token_id": named["bos_token"], "eos_token_id": _end_ids(vocabulary)},
    }


def _byte_level(vocabulary: Vocabulary) -> Tokenizer:
    split = vocabulary.value("pre")
    if split not in SPLITS:
        raise vocabulary.error(
            f"how it splits texts (tokenizer.ggml.pre) is {split!r}, which is not known here"
        )
    rule = SPLITS[split]
    merges = [_pair(each) for each in vocabulary.value("merges", [])]
    ids = {token: number for number, token in enumerate(vocabulary.tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=rule.whole_words))
    if rule.composed:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(each), "isolated") for each in rule.patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pair(merge: str) -> tuple[str, str]:
    middle = merge.find(" ", 1)
    return merge[:middle], merge[middle + 1 :]


def _sentencepiece(vocabulary: Vocabulary, *, by_order: bool) -> Tokenizer:
    if vocabulary.value("remove_extra_whitespaces") or vocabulary.value("precompiled_charsmap"):
        raise vocabulary.error("it changes texts before it splits them, in a way that is not read here")
    # Tokens of spaces have real ones, unlike all others.
    known = set(vocabulary.tokens)
    tokens = [
        spaces if not each.strip(" ") and (spaces := _SPACE * len(each)) not in known else each
        for each in vocabulary.tokens
    ]
    ids = {token: number for number, token in enumerate(tokens)}
    unknown = vocabulary.named("unknown_token_id")
    skipped = {tokens[number] for number in vocabulary.of_type(_UNKNOWN, _CONTROL, _BYTE)}
    scores = [-float(number) for number in range(len(tokens))] if by_order else vocabulary.scores
    tokenizer = Tokenizer(
        models.BPE(
            vocab=ids,
            merges=_merges(ids, scores, skipped),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=bool(vocabulary.of_type(_BYTE)),
        )
    )
    prefixed = bool(vocabulary.value("add_space_prefix", True))
    replace = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend(_SPACE), replace]) if prefixed else replace
    )
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefixed else steps)
    return tokenizer


def _merges(ids: Mapping[str, int], scores: Sequence[float], skipped: set[str]) -> list[tuple[str, str]]:
    """The pairs of tokens that are a token together, the best first."""
    found = []
    for token, number in ids.items():
        if token in skipped:
            continue
        for end in range(1, len(token)):
            left, right = token[:end], token[end:]
            if left in ids and right in ids and left not in skipped and right not in skipped:
                found.append((-scores[number], ids[left], ids[right], left, right))
    found.sort(key=lambda each: each[:3])
    return [(left, right) for *_, left, right in found]


def _add_tokens(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    """Tokens that are found in a text before it is split."""
    for kind, add in ((_CONTROL, tokenizer.add_special_tokens), (_USER, tokenizer.add_tokens)):
        texts = {number: vocabulary.tokens[number] for number in vocabulary.of_type(kind)}
        add(
            [
                AddedToken(text, special=kind == _CONTROL, normalized=False)
                for number, text in texts.items()
                if tokenizer.token_to_id(text) == number  # not so for spaces of SentencePiece
            ]
        )


def _add_ends(tokenizer: Tokenizer, vocabulary: Vocabulary, named: Mapping[str, int | None]) -> None:
    """The tokens that begin and end every text."""
    kind, split = vocabulary.value("model"), SPLITS.get(vocabulary.value("pre", ""))
    begins = vocabulary.value("add_bos_token", kind == "llama" or (split is not None and split.begins))
    wanted = [("bos_token", bool(begins)), ("eos_token", bool(vocabulary.value("add_eos_token", False)))]
    used = {name: number for name, add in wanted if add and (number := named[name]) is not None}
    if not used:
        return
    texts = {name: vocabulary.tokens[number] for name, number in used.items()}
    single = [*([texts["bos_token"]] if "bos_token" in used else []), "$A"]
    single += [texts["eos_token"]] if "eos_token" in used else []
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single,
        pair=[*single, *(each if each != "$A" else "$B" for each in single)],
        special_tokens=[(texts[name], number) for name, number in used.items()],
    )


def _end_ids(vocabulary: Vocabulary) -> list[int]:
    """The tokens that end an answer, the one that the file names first."""
    found = [number for name in _ENDS if (number := vocabulary.named(name)) is not None]
    found += [
        number for number in vocabulary.of_type(_CONTROL, _USER) if vocabulary.tokens[number] in _END_TOKENS
    ]
    texts = {vocabulary.tokens[number] for number in found}
    if {"<|return|>", "<|call|>"} <= texts:  # of gpt-oss, whose <|end|> only ends a message
        found = [number for number in found if vocabulary.tokens[number] != "<|end|>"]
    return list(dict.fromkeys(found))


def _templates(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The chat templates, of which all but the default one have a name."""
    found = {
        name.removeprefix(_TEMPLATE).removeprefix(".") or "default": text
        for name, text in settings.items()
        if (name == _TEMPLATE or name.startswith(f"{_TEMPLATE}.")) and isinstance(text, str)
    }
    if set(found) <= {"default"}:
        return {"chat_template": found["default"]} if found else {}
    return {"chat_template": [{"name": name, "template": text} for name, text in found.items()]}
