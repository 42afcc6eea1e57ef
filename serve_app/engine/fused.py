"""Llama-shaped decoder layers as a few native calls each, in place of some forty torch operations.

A fused layer takes the weights of a transformers layer, and stands in its place in the
model; embedding, rotary factors, final norm and head remain transformers' own. Only
layer classes known to have exactly this structure are replaced, and only after the
fused layer gave the original's results on a random batch. Between fused layers the
activations are float32. It knows neither batches nor cache layout.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.activations import GELUTanh, SiLUActivation
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.mistral.modeling_mistral import MistralDecoderLayer
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from serve_app.engine.attention import AttentionBackend, LayerSpec
from serve_app.engine.attention.cpu import CpuAttention
from serve_app.engine.attention.reference import ReferenceAttention
from serve_app.engine.batch import ForwardContext
from serve_app.engine.forward import ATTENTION_NAME, active, current
from serve_app.engine.kernels import native
from serve_app.engine.kernels.native import Native
from serve_app.engine.linear import PackedLinear, pack_linears

log = logging.getLogger(__name__)

LAYERS: Final = (LlamaDecoderLayer, MistralDecoderLayer, Qwen2DecoderLayer, Qwen3DecoderLayer)

# Of the largest output of a layer; the original rounds to its type after every operation.
TOLERANCE: Final = {torch.float32: 1e-4, torch.bfloat16: 3e-2}


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What the original layer asks of attention, seen by calling it once."""

    scale: float
    window: int | None
    softcap: float | None
    sinks: torch.Tensor | None


class RotaryFactors:
    """The halves of cos and sin as the kernels take them, made once a step for all layers."""

    def __init__(self) -> None:
        self._source: tuple[torch.Tensor, torch.Tensor] | None = None
        self._halves: tuple[torch.Tensor, torch.Tensor] | None = None

    def of(self, source: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """[1, T, D] each -> [T, D / 2] each, float32. All layers of a step are handed the same object."""
        if self._halves is None or source is not self._source:
            cos, sin = (factor[0, :, : factor.shape[-1] // 2].float().contiguous() for factor in source)
            self._source, self._halves = source, (cos, sin)
        return self._halves


class FusedLayer(nn.Module):
    """One pre-norm decoder layer: attention with rotary positions, then a gated MLP."""

    def __init__(
        self, layer: Any, call: AttentionCall, kernels: Native, factors: RotaryFactors, *, first: bool
    ) -> None:
        super().__init__()
        self._kernels = kernels
        self._factors = factors
        attention, mlp = layer.self_attn, layer.mlp
        self.layer_idx: int = attention.layer_idx
        self._first = first
        self._head_dim: int = attention.head_dim
        self._heads: int = attention.q_proj.out_features // self._head_dim
        self._kv_heads: int = attention.k_proj.out_features // self._head_dim
        self._call = call
        self._qkv = PackedLinear.of(attention.q_proj, attention.k_proj, attention.v_proj)
        self._out = PackedLinear.of(attention.o_proj)
        self._gate_up = PackedLinear.of(mlp.gate_proj, mlp.up_proj)
        self._down = PackedLinear.of(mlp.down_proj)
        self._gelu = type(mlp.act_fn) is GELUTanh
        self._norm_in, self._eps = _norm(layer.input_layernorm)
        self._norm_mid, self._eps_mid = _norm(layer.post_attention_layernorm)
        self._norms: tuple[torch.Tensor, torch.Tensor] | None = None
        self._eps_head = 0.0
        if hasattr(attention, "q_norm"):
            (q_norm, self._eps_head), (k_norm, _) = _norm(attention.q_norm), _norm(attention.k_norm)
            self._norms = q_norm, k_norm

    def forward(
        self,
        hidden_states: torch.Tensor,  # [1, T, N]
        position_embeddings: tuple[torch.Tensor, torch.Tensor],  # cos, sin: [1, T, D], halves alike
        **_: Any,
    ) -> torch.Tensor:
        """[1, T, N] float32. Works in place on its input, unless it is the model's first layer."""
        kernels = self._kernels
        residual = hidden_states[0].to(torch.float32, copy=self._first).contiguous()
        cos, sin = self._factors.of(position_embeddings)
        qkv = self._qkv.project(kernels.add_rmsnorm(residual, None, self._norm_in, self._eps))
        attended = self._attend(qkv, cos, sin)
        delta = self._out.project(attended.flatten(1))
        hidden = kernels.add_rmsnorm(residual, delta, self._norm_mid, self._eps_mid)
        gate_up = self._gate_up.project(hidden)
        residual += self._down.project(kernels.gated(gate_up, self._gelu))
        return residual[None]

    def _attend(self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """[T, (H + 2 Hkv) D] -> [T, H, D], all float32."""
        step, call, kernels = current(), self._call, self._kernels
        heads = qkv.view(len(qkv), -1, self._head_dim)
        cache = step.backend.native_cache(self.layer_idx) if isinstance(step.backend, CpuAttention) else None
        if cache is not None:
            kernels.rope_and_cache(
                *(qkv, cos, sin, self._norms, self._eps_head, cache, step.context.slots, self._heads)
            )
            return kernels.attend(
                heads[:, : self._heads],
                cache,
                step.context,
                scale=call.scale,
                window=call.window,
                softcap=call.softcap,
                sinks=call.sinks,
            )
        query, key, value = torch.split(heads, [self._heads, self._kv_heads, self._kv_heads], dim=1)
        if self._norms is not None:
            query, key = (
                x * (x.square().mean(-1, keepdim=True) + self._eps_head).rsqrt() * weight
                for x, weight in zip((query, key), self._norms, strict=True)
            )
        return step.backend.forward(
            self.layer_idx,
            _rotate(query, cos, sin),
            _rotate(key, cos, sin),
            value,
            step.context,
            scale=call.scale,
            window=call.window,
            softcap=call.softcap,
            sinks=call.sinks,
        )


def accelerate_cpu(model: PreTrainedModel, dtype: torch.dtype, *, fuse: bool = True) -> PreTrainedModel:
    """Make `model` fast on this CPU, in place, as far as that is possible; logs what it did.

    Call it once, after loading and before anything else holds on to the model's
    linears. `dtype` is the type of its weights. The model's forward keeps its signature;
    with fused layers it runs only inside `forward.active`.
    """
    fused = fuse_layers(model) if fuse else 0
    head = model.get_output_embeddings()
    packed = pack_linears(model)
    if isinstance(packed_head := model.get_output_embeddings(), PackedLinear) and packed_head is not head:
        packed_head.wide_output = True
    log.info("CPU: %d fused layers, %d packed linears, %s", fused, packed, dtype)
    return model


def fuse_layers(model: PreTrainedModel) -> int:
    """Replace the decoder layers by fused ones in place; returns how many: all of them or none."""
    layers = getattr(model.get_decoder(), "layers", None)
    kernels = native()
    if kernels is None or not isinstance(layers, nn.ModuleList) or not all(map(_known, layers)):
        return 0
    model.set_attn_implementation(ATTENTION_NAME)
    with torch.inference_mode():
        # Both ends, before any original is dropped; every weight is also checked when packed.
        for end in (0, -1):
            original: Any = layers[end]
            error = _error(model, original, kernels)
            if not error <= TOLERANCE[original.mlp.up_proj.weight.dtype]:
                log.error("a fused layer of %s is off by %.1g: not fused", type(model).__name__, error)
                return 0
        factors = RotaryFactors()
        for index, layer in enumerate(layers):
            call = _observe(model, layer)
            layers[index] = FusedLayer(layer, call, kernels, factors, first=index == 0)
    return len(layers)


def _known(layer: Any) -> bool:
    """Whether a fused layer can stand for it: the class, the activation, plain linears, the type."""
    if type(layer) not in LAYERS or type(layer.mlp.act_fn) not in (SiLUActivation, nn.SiLU, GELUTanh):
        return False
    linears = [module for name, module in layer.named_modules() if name.endswith("_proj")]
    return all(type(linear) is nn.Linear and linear.weight.dtype in TOLERANCE for linear in linears)


def _norm(norm: Any) -> tuple[torch.Tensor, float]:
    """Weight in float32 and epsilon."""
    return norm.weight.detach().float().contiguous(), float(norm.variance_epsilon)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [T, H, D], the factors [T, D / 2]."""
    low, high = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


class _Observer:
    """An attention backend that remembers how it was called and returns zeros."""

    def __init__(self) -> None:
        self.call: AttentionCall | None = None

    def allocate(self, *_: Any) -> None:
        raise NotImplementedError("an observer holds no cache")

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        raise NotImplementedError("an observer holds no cache")

    def forward(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        context: ForwardContext,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        self.call = AttentionCall(scale, window, softcap, sinks)
        return query.new_zeros(query.shape[0], query.shape[1], value.shape[2])


def _observe(model: PreTrainedModel, layer: Any) -> AttentionCall:
    observer = _Observer()
    _run(model, layer, observer, _random_states(model, layer))
    if observer.call is None:
        raise RuntimeError("the layer did not call attention")
    return observer.call


def _error(model: PreTrainedModel, layer: Any, kernels: Native) -> float:
    """Largest difference between the layer's update of its input and the fused one's, relative."""
    fused = FusedLayer(layer, _observe(model, layer), kernels, RotaryFactors(), first=True)
    states = _random_states(model, layer)
    attention = layer.self_attn
    spec = LayerSpec(
        attention.k_proj.out_features // attention.head_dim, attention.head_dim, attention.head_dim
    )
    updates = []
    for module, backend in ((layer, ReferenceAttention()), (fused, CpuAttention())):
        backend.allocate((spec,) * (attention.layer_idx + 1), 1, 16, states.dtype, states.device)
        updates.append(_run(model, module, backend, states).float() - states.float())
    return float((updates[0] - updates[1]).abs().max() / updates[0].abs().max().clamp_min(1e-6))


def _random_states(model: PreTrainedModel, layer: Any) -> torch.Tensor:
    """[1, 5, N] of the weights' type, the same each time."""
    size = model.config.get_text_config().hidden_size
    states = torch.randn(1, 5, size, generator=torch.Generator().manual_seed(0))
    return states.to(layer.mlp.up_proj.weight.dtype)


def _run(model: PreTrainedModel, layer: Any, backend: AttentionBackend, states: torch.Tensor) -> torch.Tensor:
    """One layer on one short sequence, the way the model calls it."""
    tokens = states.shape[1]
    positions = torch.arange(tokens)
    context = ForwardContext(
        query_start=torch.tensor([0, tokens], dtype=torch.int32),
        context_lens=torch.tensor([tokens], dtype=torch.int32),
        block_tables=torch.zeros(1, 1, dtype=torch.int32),
        slots=positions,
        query_lens=(tokens,),
        lens=(tokens,),
        block_size=16,
    )
    factors = model.get_decoder().rotary_emb(states, positions[None])
    with active(backend, context):
        out: torch.Tensor = layer(
            states, attention_mask=None, position_ids=positions[None], position_embeddings=factors
        )
    return out
