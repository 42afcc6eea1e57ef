"""The architectures of GGUF files that are read: their settings and the names of their tensors.

A setting or a tensor that its family does not know is refused by name: it may change what the model computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from serve_app.models.gguf import delta_layers
from serve_app.models.gguf.changes import IN_TURN, TRANSPOSED, Change
from serve_app.models.gguf.facts import ORIGIN, Facts
from serve_app.models.gguf.positions import rope

# Names of tensors in a layer, without what they share (a whole name has no `.weight` after it, either); {} is
# the number of an expert.
_ATTENTION: Final = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_MLP: Final = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_NORMS: Final = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_HEAD_NORMS: Final = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_FOUR_NORMS: Final = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_EXPERTS: Final = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
_SHARED: Final = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_MIXTRAL: Final = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
}
_LFM2: Final = {
    **{each: _ATTENTION[each] for each in ("attn_q", "attn_k", "attn_v")},
    "attn_output": "self_attn.out_proj",
    "attn_norm": "operator_norm",
    "ffn_norm": "ffn_norm",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
    "shortconv.conv": "conv.conv",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
}
_TWO_NORMS: Final = {"attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm"}
_QWEN35: Final = {**_ATTENTION, **_HEAD_NORMS, **_TWO_NORMS, **delta_layers.NAMES}
_STACKED: Final = {
    "ffn_gate_up_exps.weight": "mlp.experts.gate_up_proj",
    "ffn_down_exps.weight": "mlp.experts.down_proj",
    "ffn_down_exps.bias": "mlp.experts.down_proj_bias",
}
_HALVES: Final = {
    "mlp.experts.gate_up_proj": ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
    "mlp.experts.gate_up_proj_bias": ("ffn_gate_exps.bias", "ffn_up_exps.bias"),
}
_TOKENS: Final = (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))


@dataclass(frozen=True, slots=True)
class Family:
    """How files of one architecture are read."""

    model_type: str
    kind: str  # the class of the language model in transformers
    layer: Mapping[str, str]
    config: Callable[[Facts], dict[str, Any]]
    top: Mapping[str, str] = field(default_factory=dict)  # names outside layers, besides the usual ones
    joined: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of which tensors one is put together
    # The tensor of a layer, and config.json -> how the tensor differs; of those that are joined, the first.
    changes: Callable[[str, Mapping[str, Any]], Sequence[Change]] = lambda name, config: ()
    paired: bool = False  # rows of queries and keys are in pairs
    norms_plus_one: bool = False


def family_of(facts: Facts) -> Family:
    """Raises ModelLoadError, with the name, for an architecture that is not read here."""
    if facts.architecture == "llama" and facts.has("expert_count"):
        return _MIXTURE_OF_LLAMAS
    if facts.architecture not in FAMILIES:
        raise facts.error(
            f"the architecture {facts.architecture!r} is not read from GGUF files here, only "
            f"{', '.join(sorted(FAMILIES))}; {ORIGIN}"
        )
    return FAMILIES[facts.architecture]


def config_of(facts: Facts, family: Family) -> dict[str, Any]:
    """What config.json would say. Raises ModelLoadError for settings that are missing, wrong or unknown."""
    made = {
        "architectures": [family.kind],
        "model_type": family.model_type,
        "vocab_size": facts.rows("token_embd.weight"),
        "tie_word_embeddings": "output.weight" not in facts.tensors,
        **{f"{each}_token_id": facts.settings.get(f"tokenizer.ggml.{key}_token_id") for each, key in _TOKENS},
        **family.config(facts),
    }
    layers = {name.split(".")[1] for name in facts.tensors if name.startswith("blk.")}
    if layers != {str(number) for number in range(facts.integer("block_count"))}:
        raise facts.error(f"it has tensors of {len(layers)} layers, not of {facts.integer('block_count')}")
    if facts.tensors["token_embd.weight"].shape != (made["vocab_size"], made["hidden_size"]):
        shape = list(facts.tensors["token_embd.weight"].shape)
        raise facts.error(
            f"its embeddings have the shape {shape}, its embedding_length is {made['hidden_size']}"
        )
    if len(facts.settings.get("tokenizer.ggml.tokens", ())) > made["vocab_size"]:
        raise facts.error(f"its tokenizer has more tokens than the {made['vocab_size']} of its embeddings")
    facts.integer("vocab_size", made["vocab_size"])  # of the tokenizer; the embeddings may have more
    if unknown := facts.unread():
        raise facts.error(
            f"its setting {unknown[0]} is not known here, and may change what it computes; {ORIGIN}"
        )
    return made


def _decoder(facts: Facts) -> dict[str, Any]:
    """Of any family with attention and a gated MLP in each layer."""
    heads, hidden = facts.integer("attention.head_count"), facts.integer("embedding_length")
    size = facts.integer("attention.key_length", max(1, hidden // heads))
    if facts.integer("attention.value_length", size) != size:
        raise facts.error(
            f"its values have {facts.integer('attention.value_length')} numbers, its keys {size}"
        )
    window = facts.integer("context_length")
    wide = "feed_forward_length"
    if not facts.has(wide) and facts.has(f"expert_{wide}"):  # all its MLPs are experts
        wide = f"expert_{wide}"
    return {
        "hidden_size": hidden,
        "intermediate_size": facts.integer(wide),
        "num_hidden_layers": facts.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": facts.integer("attention.head_count_kv", heads),
        "head_dim": size,
        "rms_norm_eps": facts.real("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": window,
        **rope(facts, size, window),
    }


def _llama(facts: Facts) -> dict[str, Any]:
    tensors = facts.tensors
    return {
        **_decoder(facts),
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
    }


def _routed(facts: Facts) -> dict[str, Any]:
    found = _decoder(facts)
    wide = facts.tensors.get("blk.0.ffn_gate_exps.weight")
    if wide is None or len(wide.shape) != 3:
        raise facts.error("it lacks experts in its first layer")
    found["moe_intermediate_size"] = facts.integer("expert_feed_forward_length", wide.shape[1])
    found["num_experts"] = facts.integer("expert_count")
    found["num_experts_per_tok"] = facts.integer("expert_used_count")
    return found


def _qwen2moe(facts: Facts) -> dict[str, Any]:
    shared = facts.rows("blk.0.ffn_gate_shexp.weight")
    return {
        **_routed(facts),
        "shared_expert_intermediate_size": facts.integer("expert_shared_feed_forward_length", shared),
        "norm_topk_prob": False,  # as llama.cpp computes it
    }


def _mixtral(facts: Facts) -> dict[str, Any]:
    found = _decoder(facts)
    found["num_local_experts"] = facts.integer("expert_count")
    found["num_experts_per_tok"] = facts.integer("expert_used_count")
    return found


def _gemma(facts: Facts) -> dict[str, Any]:
    return {**_decoder(facts), "hidden_activation": "gelu_pytorch_tanh"}


def _gemma2(facts: Facts) -> dict[str, Any]:
    found = _gemma(facts)
    of_27b = found["num_hidden_layers"] == 46
    return {
        **found,
        "sliding_window": facts.integer("attention.sliding_window", 4096),
        "attn_logit_softcapping": facts.real("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": facts.real("final_logit_softcapping", 30.0),
        "query_pre_attn_scalar": _query_scale(found, of_27b),
    }


def _gemma3(facts: Facts) -> dict[str, Any]:
    found = _gemma(facts)
    of_27b = found["num_hidden_layers"] == 62
    local = {"rope_type": "default", "rope_theta": facts.real("rope.freq_base_swa", 10_000.0)}
    return {
        **found,
        "sliding_window": facts.integer("attention.sliding_window"),
        "layer_types": [
            "full_attention" if (number + 1) % 6 == 0 else "sliding_attention"
            for number in range(found["num_hidden_layers"])
        ],
        "rope_parameters": {"sliding_attention": local, "full_attention": found["rope_parameters"]},
        "query_pre_attn_scalar": _query_scale(found, of_27b),
    }


def _query_scale(config: Mapping[str, Any], of_27b: bool) -> int:
    """No file states it. llama.cpp tells the largest model by its layers too."""
    return int(config["hidden_size"] // config["num_attention_heads"] if of_27b else config["head_dim"])


def _phi3(facts: Facts) -> dict[str, Any]:
    return {
        **_decoder(facts),
        "sliding_window": facts.integer("attention.sliding_window", 2**31 - 1),
        "original_max_position_embeddings": facts.integer(
            "rope.scaling.original_context_length", facts.integer("context_length")
        ),
    }


def _lfm2(facts: Facts) -> dict[str, Any]:
    kv_heads = facts.value("attention.head_count_kv")
    counts = kv_heads if isinstance(kv_heads, list) else [kv_heads] * facts.integer("block_count")
    heads, hidden = facts.integer("attention.head_count"), facts.integer("embedding_length")
    window = facts.integer("context_length")
    return {
        "hidden_size": hidden,
        "intermediate_size": facts.integer("feed_forward_length"),
        "block_auto_adjust_ff_dim": False,
        "num_hidden_layers": len(counts),
        "num_attention_heads": heads,
        "num_key_value_heads": max(counts),
        "layer_types": ["full_attention" if count else "conv" for count in counts],
        "norm_eps": facts.real("attention.layer_norm_rms_epsilon"),
        "conv_L_cache": facts.integer("shortconv.l_cache"),
        "conv_bias": "blk.0.shortconv.conv.bias" in facts.tensors,
        "max_position_embeddings": window,
        **rope(facts, max(1, hidden // heads), window),
    }


def _qwen35(facts: Facts) -> dict[str, Any]:
    found = {**_decoder(facts), **delta_layers.settings_of(facts)}
    positions = found["rope_parameters"]
    positions.setdefault("partial_rotary_factor", 1.0)  # transformers' own default is another
    sections = facts.value("rope.dimension_sections", [])
    if isinstance(sections, list) and len(sections) == 4:
        positions |= {"mrope_section": sections[:3], "mrope_interleaved": True}
    return found


def _qwen35moe(facts: Facts) -> dict[str, Any]:
    found = _qwen35(facts)
    return {
        **found,
        "moe_intermediate_size": facts.integer("expert_feed_forward_length"),
        "shared_expert_intermediate_size": facts.integer("expert_shared_feed_forward_length"),
        "num_experts": facts.integer("expert_count"),
        "num_experts_per_tok": facts.integer("expert_used_count"),
    }


def _gpt_oss(facts: Facts) -> dict[str, Any]:
    found = _decoder(facts)
    if found["rope_parameters"]["rope_type"] == "yarn":
        found["rope_parameters"]["truncate"] = False  # as the model is published
    return {
        **found,
        "intermediate_size": facts.integer("expert_feed_forward_length"),
        "sliding_window": facts.integer("attention.sliding_window"),
        "num_local_experts": facts.integer("expert_count"),
        "num_experts_per_tok": facts.integer("expert_used_count"),
    }


def _gpt_oss_changes(name: str, config: Mapping[str, Any]) -> Sequence[Change]:
    """Experts have rows of gates and of others in turn, and transformers has inputs before outputs."""
    if name.startswith("ffn_gate_exps."):
        return ((IN_TURN, 1), (TRANSPOSED,)) if name.endswith("weight") else ((IN_TURN, 1),)
    return ((TRANSPOSED,),) if name == "ffn_down_exps.weight" else ()


_MIXTURE_OF_LLAMAS: Final = Family(
    "mixtral", "MixtralForCausalLM", {**_ATTENTION, **_NORMS, **_MIXTRAL}, _mixtral, paired=True
)
FAMILIES: Final[Mapping[str, Family]] = {
    "llama": Family("llama", "LlamaForCausalLM", {**_ATTENTION, **_NORMS, **_MLP}, _llama, paired=True),
    "qwen2": Family("qwen2", "Qwen2ForCausalLM", {**_ATTENTION, **_NORMS, **_MLP}, _decoder),
    "qwen2moe": Family(
        "qwen2_moe", "Qwen2MoeForCausalLM", {**_ATTENTION, **_NORMS, **_EXPERTS, **_SHARED}, _qwen2moe
    ),
    "qwen3": Family("qwen3", "Qwen3ForCausalLM", {**_ATTENTION, **_HEAD_NORMS, **_NORMS, **_MLP}, _decoder),
    "qwen3moe": Family(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        {**_ATTENTION, **_HEAD_NORMS, **_NORMS, **_EXPERTS},
        lambda facts: {**_routed(facts), "norm_topk_prob": True},
    ),
    "gemma": Family(
        "gemma", "GemmaForCausalLM", {**_ATTENTION, **_NORMS, **_MLP}, _gemma, norms_plus_one=True
    ),
    "gemma2": Family(
        "gemma2", "Gemma2ForCausalLM", {**_ATTENTION, **_FOUR_NORMS, **_MLP}, _gemma2, norms_plus_one=True
    ),
    "gemma3": Family(
        "gemma3_text",
        "Gemma3ForCausalLM",
        {**_ATTENTION, **_HEAD_NORMS, **_FOUR_NORMS, **_MLP},
        _gemma3,
        norms_plus_one=True,
    ),
    "phi3": Family(
        "phi3",
        "Phi3ForCausalLM",
        {
            "attn_qkv": "self_attn.qkv_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_up": "mlp.gate_up_proj",
            "ffn_down": "mlp.down_proj",
            **_NORMS,
        },
        _phi3,
    ),
    "gpt-oss": Family(
        "gpt_oss",
        "GptOssForCausalLM",
        {
            **_ATTENTION,
            **_TWO_NORMS,
            **_STACKED,
            "attn_sinks.weight": "self_attn.sinks",
            "ffn_gate_inp": "mlp.router",
        },
        _gpt_oss,
        joined=_HALVES,
        changes=_gpt_oss_changes,
    ),
    "qwen35": Family(
        "qwen3_5_text",
        "Qwen3_5ForCausalLM",
        {**_QWEN35, **_MLP},
        _qwen35,
        norms_plus_one=True,
        changes=delta_layers.changes_of,
    ),
    "qwen35moe": Family(
        "qwen3_5_moe_text",
        "Qwen3_5MoeForCausalLM",
        {**_QWEN35, **_SHARED, **_STACKED, "ffn_gate_inp": "mlp.gate"},
        _qwen35moe,
        norms_plus_one=True,
        joined=_HALVES,
        changes=delta_layers.changes_of,
    ),
    "lfm2": Family("lfm2", "Lfm2ForCausalLM", _LFM2, _lfm2, top={"token_embd_norm": "model.embedding_norm"}),
}
