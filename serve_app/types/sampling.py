"""How the next token is chosen: sampling, beams, grammars."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorCall:
    """A logits processor that the operator registered, by name, with its arguments."""

    name: str
    arguments: str = "{}"  # a JSON object of keyword arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopRule:
    """Ends an output whose last `least` to `most` tokens occurred `count` times in a row."""

    least: int = 1
    most: int  # >= least
    count: int  # >= 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token of a sequence is chosen, and when the sequence ends.

    Ranges are the engine's own; a dialect may allow less. The fields act on the logits in the order of
    `engine/sampler.py`.
    """

    temperature: float = 1.0  # >= 0; 0 is greedy
    top_k: int = 0  # 0 is off; 1 is greedy
    top_p: float = 1.0  # (0, 1]; 1 is off
    top_p_decay: float = 1.0  # (0, 1]: top_p is multiplied by this after each token
    top_p_min: float = 0.0  # [0, 1]: the decay of top_p ends here
    top_p_reset_id: int = -1  # after this token top_p has its first value again; -1: no such token
    min_p: float = 0.0  # [0, 1]; 0 is off
    typical_p: float = 1.0  # (0, 1]; 1 is off
    seed: int | None = None  # 0 .. 2**64-1; None: the engine draws one
    repetition_penalty: float = 1.0  # > 0; sees the output (and the prompt, see below)
    repetition_sees_prompt: bool = True
    presence_penalty: float = 0.0  # sees the output (and the prompt, see below)
    frequency_penalty: float = 0.0
    penalize_prompt: bool = False  # presence and frequency count prompt tokens too
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, added logit)
    bad_words: tuple[tuple[int, ...], ...] = ()  # token sequences never to complete
    allowed_token_ids: tuple[int, ...] = ()  # empty: all
    min_tokens: int = 0  # tokens that would end the sequence earlier are masked
    max_tokens: int | None = None  # >= 1; None: until the context is full
    stop_token_ids: tuple[int, ...] = ()
    stop_sequences: tuple[tuple[int, ...], ...] = ()  # each ends the output, and stays in it
    ignore_eos: bool = False  # EOS does not end the sequence (it is not masked)
    no_repeat_ngram: int = 0  # no sequence of this many tokens twice, the prompt included; 0 is off
    loop: LoopRule | None = None  # stops repetitive output; None: off
    watermark: bool = False  # green-list bias before the draw
    processors: tuple[ProcessorCall, ...] = ()  # named logits processors, in order

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0 or self.top_k == 1


DEFAULT_SAMPLING: Final = SamplingParams()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """A model's values for fields of `SamplingParams` that a client leaves out. None: it has none."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None  # lowered to what the window and the operator's limit leave

    def fill(self, sampling: SamplingParams, left_to_model: tuple[str, ...]) -> SamplingParams:
        """`sampling` with the model's values for the fields of `left_to_model`, except max_tokens."""
        values = {
            name: value
            for name in left_to_model
            if name != "max_tokens" and (value := getattr(self, name)) is not None
        }
        return replace(sampling, **values) if values else sampling


# Every field that a client can leave to the model.
LEFT_TO_MODEL: Final = tuple(each.name for each in fields(SamplingDefaults))
NO_DEFAULTS: Final = SamplingDefaults()


class EarlyStopping(StrEnum):
    """When a beam search ends, given that it already has `width` finished hypotheses."""

    YES = "yes"  # at once
    NO = "no"  # when no running beam can beat the worst of them
    NEVER = "never"  # when every beam ended or the length is reached


@dataclass(frozen=True, slots=True, kw_only=True)
class Beam:
    """Beam search in place of sampling; filters, temperature and seeds have no effect."""

    width: int  # >= 2, a multiple of `groups`
    length_penalty: float = 1.0  # score: sum of log-probabilities / length ** length_penalty
    early_stopping: EarlyStopping = EarlyStopping.NO
    groups: int = 1  # groups avoid each other's tokens by `diversity_penalty`
    diversity_penalty: float = 0.0  # >= 0


class GrammarKind(StrEnum):
    """The kind of text that `Grammar.text` is."""

    JSON = "json_object"  # any JSON object; the text is empty
    SCHEMA = "json_schema"  # a JSON Schema, as canonical JSON
    REGEX = "regex"
    CHOICE = "choice"  # a JSON list of strings
    LARK = "grammar"  # Lark's notation, as llguidance reads it


@dataclass(frozen=True, slots=True)
class MarkerRule:
    """A grammar rule for a text that the model may write with control tokens instead of their names."""

    name: str
    text: str
    opens: int = 0  # the first characters of `text`, which end the free text (TEXT) before them


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """The form of the whole output. Text that spells out a token's name remains plain text."""

    kind: GrammarKind
    text: str = ""
    space: str | None = None  # of JSON: a regex of what is allowed between tokens; None: the model's setting
    markers: tuple[MarkerRule, ...] = ()  # of Lark's notation: rules to which `text` refers

    @property
    def is_json(self) -> bool:
        """Whether every text that the grammar accepts is JSON."""
        return self.kind in (GrammarKind.JSON, GrammarKind.SCHEMA)
