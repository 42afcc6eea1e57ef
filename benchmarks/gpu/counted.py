"""What a roofline counts of a decoder of any kind: mixtures, states, latents. Counted from its weights.

Products of a recurrence do not count: they are a few for each number of a state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from benchmarks.roofline import CACHE_BYTES

STATE_BYTES: Final = 4  # of one number of a matrix


@dataclass(frozen=True)
class Counted:
    """As `roofline.Work`."""

    vocabulary: int
    dense: int  # weights that each token is multiplied by, without the head
    head: int
    experts: int  # weights of all experts
    chosen: float  # the share of a layer's experts that a token is multiplied by
    attending: int  # operations for a token and one that it sees, in all layers
    cached: int  # bytes of a token in the cache
    state: int  # bytes of a sequence's states

    @classmethod
    def of(cls, config: PretrainedConfig) -> Counted:
        with torch.device("meta"):
            return cls.of_model(AutoModelForCausalLM.from_config(config))

    @classmethod
    def of_model(cls, model: Any) -> Counted:
        """`model`: whole, or a rank's part with the settings of that part."""
        made = model.config
        embedding, experts, dense = model.get_input_embeddings().weight, 0, 0
        head = model.get_output_embeddings().weight
        for name, weight in model.named_parameters():
            if weight.dim() < 2 or weight is embedding or weight is head:
                continue
            if weight.dim() == 3 and ".experts." in name:
                experts += weight.numel()
            else:
                dense += weight.numel()
        names = ("num_experts", "n_routed_experts", "num_local_experts")
        count = next((found for name in names if (found := getattr(made, name, None))), None)
        layers = made.num_hidden_layers
        linear = (getattr(made, "layer_types", None) or []).count("linear_attention")
        if getattr(made, "kv_lora_rank", None):
            widths = made.qk_nope_head_dim + made.qk_rope_head_dim + made.v_head_dim
            kept = made.kv_lora_rank + made.qk_rope_head_dim
        else:
            widths, kept = 2 * made.head_dim, 2 * made.num_key_value_heads * made.head_dim
        return cls(
            vocabulary=made.vocab_size,
            dense=dense,
            head=head.numel(),
            experts=experts,
            chosen=made.num_experts_per_tok / count if count else 0.0,
            attending=2 * (layers - linear) * made.num_attention_heads * widths,
            cached=(layers - linear) * kept * CACHE_BYTES,
            state=linear * _matrices(made) * STATE_BYTES if linear else 0,
        )

    def prefill_flops(self, tokens: int, start: int = 0) -> int:
        """As `roofline.Shape`."""
        seen = tokens * start + tokens * (tokens + 1) // 2
        products = 2 * int(self.dense + self.experts * self.chosen) * tokens
        return products + self.attending * seen + 2 * self.head

    def decode_flops(self, batch: int, context: int) -> int:
        """As `roofline.Shape`."""
        products = 2 * int(self.dense + self.experts * self.chosen + self.head)
        return batch * (products + self.attending * (context + 1))

    def decode_bytes(self, batch: int, context: int, weight_bytes: float = 2.0) -> float:
        """As `roofline.Shape`. Of the experts those count that some token chooses, if each is as likely."""
        read = self.experts * (1 - (1 - self.chosen) ** batch)
        weights = (self.dense + self.head + read) * weight_bytes
        return weights + batch * (context * self.cached + 2 * self.state)


def _matrices(config: Any) -> int:
    """The numbers of one layer's matrices."""
    found: int = config.linear_num_value_heads * config.linear_key_head_dim * config.linear_value_head_dim
    return found
