"""The families whose decoder layers are fused: for each, a declaration of how its layers are built.

A family is transformers' classes NAMEForCausalLM and NAMEDecoderLayer. Anything that a declaration leaves out
is as in Llama. Scales, soft-caps and windows of attention are not declared: layers pass them in each call of
attention.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from transformers import PreTrainedModel

_WORDS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")  # Qwen3Moe: qwen3_moe
DELTA_NUMBERS: Final = 16  # keys and values of a head with a gated delta rule are multiples of it


class NormForm(Enum):
    """The weights of a norm, and whether it subtracts the mean first."""

    WEIGHT = "RMSNorm times its weight"
    ONE_PLUS_WEIGHT = "RMSNorm times one plus its weight"
    LAYER = "LayerNorm without a bias, times its weight"


class HeadNorms(Enum):
    """How `q_norm` and `k_norm` normalise queries and keys before rotary positions are applied."""

    NONE = "not at all"
    EACH = "each head by itself"
    WHOLE = "all heads of the queries as one row, and all heads of the keys"


class Turned(Enum):
    """Which numbers of a head are the pairs that rotary positions turn."""

    HALVES = "one of the first half with one of the second"
    HALVES_FACTORS_ONCE = "the same; the factors come once for each pair"
    NEIGHBOURS = "two neighbours; the factors come by halves"
    NEIGHBOURS_FACTORS_TOO = "two neighbours; the factors come in the same order"


def _one(config: Any) -> float:
    return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How the layers of one family are built, by the names that transformers gives to their parts."""

    name: str
    norm: NormForm = NormForm.WEIGHT
    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None  # of what attention adds
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None  # of what the MLP adds
    parallel: bool = False  # the MLP takes what attention takes: there is no norm before it
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")  # one name: all three are one linear
    gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    mixture: str | None = None  # the class of an MLP with experts, which some layers have
    activation: str = "act_fn"
    head_norms: HeadNorms = HeadNorms.NONE
    output_gate: bool = False  # `q_proj` gives each head its query, and gates of its attention's output
    delta: str | None = None  # the part of a layer with a gated delta rule, if some have it for attention
    turned: Turned = Turned.HALVES
    # By the configuration: a factor of what attention and MLP add, of embeddings, and of logits.
    added: Callable[[Any], float] = _one
    embedded: Callable[[Any], float] = _one
    logits: Callable[[Any], float] = _one
    logits_softcap: str | None = None  # the setting that has it
    fits: Callable[[Any], bool] = lambda config: True  # whether a model of that configuration is built so

    def has(self, part: object, kind: str) -> bool:
        """Whether `part` is an instance of the family's own class of this kind, such as `DecoderLayer`."""
        folder = _WORDS.sub("_", self.name).lower()
        place = f"transformers.models.{folder}.modeling_{folder}"
        return (type(part).__module__, type(part).__name__) == (place, f"{self.name}{kind}")


QWEN3_5: Final = Family(
    name="Qwen3_5",
    norm=NormForm.ONE_PLUS_WEIGHT,
    head_norms=HeadNorms.EACH,
    output_gate=True,
    delta="linear_attn",
    fits=lambda config: not (config.linear_key_head_dim | config.linear_value_head_dim) % DELTA_NUMBERS,
)

FAMILIES: Final = (
    Family(name="Llama"),
    Family(name="Mistral"),
    Family(name="Qwen2"),
    Family(name="Qwen3", head_norms=HeadNorms.EACH),
    Family(
        name="Gemma2",
        norm=NormForm.ONE_PLUS_WEIGHT,
        after_attention="post_attention_layernorm",
        before_mlp="pre_feedforward_layernorm",
        after_mlp="post_feedforward_layernorm",
        logits_softcap="final_logit_softcapping",
    ),
    Family(
        name="Gemma3",
        norm=NormForm.ONE_PLUS_WEIGHT,
        after_attention="post_attention_layernorm",
        before_mlp="pre_feedforward_layernorm",
        after_mlp="post_feedforward_layernorm",
        head_norms=HeadNorms.EACH,
        logits_softcap="final_logit_softcapping",
    ),
    Family(name="Phi3", qkv=("qkv_proj",), gate_up=("gate_up_proj",), activation="activation_fn"),
    Family(
        name="Olmo2",
        before_attention=None,
        after_attention="post_attention_layernorm",
        before_mlp=None,
        after_mlp="post_feedforward_layernorm",
        head_norms=HeadNorms.WHOLE,
    ),
    Family(
        name="Glm4",
        after_attention="post_self_attn_layernorm",
        after_mlp="post_mlp_layernorm",
        gate_up=("gate_up_proj",),
        activation="activation_fn",
        turned=Turned.NEIGHBOURS,
    ),
    Family(
        name="Granite",
        added=lambda config: float(config.residual_multiplier),
        embedded=lambda config: float(config.embedding_multiplier),
        logits=lambda config: 1 / config.logits_scaling,
    ),
    QWEN3_5,
    replace(QWEN3_5, name="Qwen3_5Moe", mixture="SparseMoeBlock"),
    Family(name="Mixtral", mixture="SparseMoeBlock"),
    Family(name="Qwen2Moe", mixture="SparseMoeBlock"),
    Family(name="Qwen3Moe", head_norms=HeadNorms.EACH, mixture="SparseMoeBlock"),
    Family(
        name="Olmoe",
        head_norms=HeadNorms.WHOLE,
        mixture="SparseMoeBlock",
        fits=lambda config: not config.clip_qkv,
    ),
    Family(name="Dots1", head_norms=HeadNorms.EACH, mixture="MoE"),
    Family(name="Glm4Moe", mixture="MoE", fits=lambda config: not config.use_qk_norm),
    Family(name="Glm4Moe", head_norms=HeadNorms.EACH, mixture="MoE", fits=lambda config: config.use_qk_norm),
    Family(name="SolarOpen", mixture="MoE"),
    Family(name="Ernie4_5_Moe", mixture="SparseMoeBlock", turned=Turned.NEIGHBOURS),
    Family(name="GptOss", mixture="MLP", turned=Turned.HALVES_FACTORS_ONCE),
    Family(
        name="Cohere",
        norm=NormForm.LAYER,
        before_mlp=None,
        parallel=True,
        turned=Turned.NEIGHBOURS_FACTORS_TOO,
        logits=lambda config: float(config.logit_scale),
        fits=lambda config: not config.use_qk_norm,  # whose norms have other weights for each head
    ),
)


def family_of(model: PreTrainedModel, *, states: bool = False) -> Family | None:
    """The family of `model` if its layers can be fused; None for any other family, and for a subclass.

    `states`: whether layers with a state can be fused.
    """
    config = model.config.get_text_config()
    named = (family for family in FAMILIES if family.has(model, "ForCausalLM"))
    found = next((family for family in named if family.fits(config)), None)
    return found if found is not None and (states or found.delta is None) else None
