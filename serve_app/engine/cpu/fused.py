"""Makes a transformers model fast on a CPU: its decoder layers become one fused stack, its linears packed.

A layer is replaced only if its class is known to have the structure of a fused layer, and only
after the fused layer gave the original's results on a random batch. The forward around the layers
is replaced under the same conditions; otherwise transformers' own embedding, rotary factors and
norm run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
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
from serve_app.engine.cpu.decoder import AttentionCall, FusedLayer, FusedStack
from serve_app.engine.cpu.fused_forward import FusedForward
from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.kernels import native
from serve_app.engine.kernels.native import Native
from serve_app.engine.kernels.quantized import Quantization
from serve_app.engine.linear.packable import packable_linears
from serve_app.engine.linear.packed import Pack, PackedLinear, pack_linears
from serve_app.engine.linear.quantized import packer, sensitive_linears
from serve_app.engine.model.forward import (
    ATTENTION_NAME,
    UnsupportedModel,
    active,
    check_takes_positions,
)

log = logging.getLogger(__name__)

LAYERS: Final = (LlamaDecoderLayer, MistralDecoderLayer, Qwen2DecoderLayer, Qwen3DecoderLayer)

PROGRESS: Final = 8  # layers between two lines of progress while weights are quantised
TOKENS: Final = 5  # of the batches on which results are compared

# Of the largest output of a layer; the original rounds to its type after every operation.
TOLERANCE: Final = {torch.float32: 1e-4, torch.bfloat16: 3e-2}


def accelerate_cpu(
    model: PreTrainedModel,
    dtype: torch.dtype,
    *,
    fuse: bool = True,
    quantization: Quantization | None = None,
    progress: Callable[[str], None] = log.info,
) -> PreTrainedModel:
    """Make `model` fast on this CPU, in place, as far as that is possible; logs what it did.

    Call it once, after loading and before anything else holds on to the model's
    linears. `dtype` is the type of its weights. The model's forward keeps its signature;
    it runs only inside `forward.active`. Raises UnsupportedModel, as a dry run does, and for a
    `quantization` that does not reach the model's weights.
    """
    head = model.get_output_embeddings()
    pack = packer(quantization, sensitive_linears(model))
    if quantization is not None:
        check_quantizable(model, quantization)
    fused = fuse_layers(model, pack, progress if quantization else None) if fuse else 0
    packed = pack_linears(model, packable_linears(model, lambda: _run_model(model)), pack)
    if quantization is not None and not packed:
        raise UnsupportedModel(
            f"quantization {quantization} cannot be applied: the model reads its own weights"
        )
    if isinstance(packed_head := model.get_output_embeddings(), PackedLinear) and packed_head is not head:
        packed_head.wide_output = True
    if fused:
        _fuse_forward(model)
    log.info("CPU: %d fused layers, %d packed linears, %s", fused, packed, dtype)
    return model


def check_quantizable(model: PreTrainedModel, kind: Quantization) -> None:
    """Raises UnsupportedModel for a model whose weights are not those of linear layers, such as experts."""
    for name, parameter in model.named_parameters():
        if parameter.dim() > 2:
            raise UnsupportedModel(
                f"quantization {kind} is for weights of linear layers; {name} is a tensor of shape "
                f"{tuple(parameter.shape)}, as experts are. Serve the model without `quantization`"
            )


def fuse_layers(
    model: PreTrainedModel,
    pack: Pack = PackedLinear.of,
    progress: Callable[[str], None] | None = None,
) -> int:
    """Replace the decoder layers by fused ones in place; returns how many: all of them or none.

    `pack` makes their linears. Results are compared with linears in the weights' own type.
    """
    layers = getattr(model.get_decoder(), "layers", None)
    kernels = native()
    if kernels is None or not isinstance(layers, nn.ModuleList) or not all(map(_known, layers)):
        return 0
    model.set_attn_implementation(ATTENTION_NAME)
    with torch.inference_mode():
        # The first and the last layer, before any original is dropped. Packing checks every weight besides.
        for end in (0, -1):
            original: Any = layers[end]
            error = _error(model, original, kernels)
            if not error <= TOLERANCE[original.mlp.up_proj.weight.dtype]:
                log.error("a fused layer of %s is off by %.1g: not fused", type(model).__name__, error)
                return 0
        count = len(layers)
        # In place, so that an original is freed as soon as its weights are packed.
        for index, layer in enumerate(layers):
            layers[index] = FusedLayer(layer, _observe(model, layer), kernels, pack)
            if progress is not None and (index + 1) % PROGRESS == 0:
                progress(f"quantised {index + 1} of {count} layers")
        fused: Any = FusedStack(layers, kernels)
        model.get_decoder().layers = nn.ModuleList([fused])
    return count


def _fuse_forward(model: PreTrainedModel) -> None:
    """Replace the forward of a model of fused layers, if the new one gives the same on a random batch."""
    kernels = native()
    fused = FusedForward.of(model, kernels) if kernels is not None else None
    if fused is None:
        return
    config = model.config.get_text_config()
    ids = torch.randint(config.vocab_size, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(TOKENS)
    inputs: dict[str, Any] = {
        "input_ids": ids,
        "position_ids": positions[None],
        "use_cache": False,
        "logits_to_keep": positions,
    }
    heads = config.num_key_value_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    layers = (LayerSpec(heads, size, size),) * config.num_hidden_layers
    backend = CpuAttention()
    backend.allocate(layers, 1, 16, model.dtype, torch.device("cpu"))
    with torch.inference_mode(), active(backend, _context(TOKENS)):
        want, got = model(**inputs).logits.float(), fused(**inputs).logits.float()
    error = float((got - want).abs().max() / want.abs().max().clamp_min(1e-6))
    if not error <= TOLERANCE[model.dtype]:
        log.error("the fused forward of %s is off by %.1g: not used", type(model).__name__, error)
        return
    model.forward = fused


def _known(layer: Any) -> bool:
    """Whether a fused layer can replace `layer`: its class, activation, linears and type are known."""
    if type(layer) not in LAYERS or type(layer.mlp.act_fn) not in (SiLUActivation, nn.SiLU, GELUTanh):
        return False
    linears = [module for name, module in layer.named_modules() if name.endswith("_proj")]
    return all(type(linear) is nn.Linear and linear.weight.dtype in TOLERANCE for linear in linears)


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


def _run_model(model: PreTrainedModel) -> None:
    """One forward of a few tokens, in which attention returns zeros."""
    check_takes_positions(model)
    model.set_attn_implementation(ATTENTION_NAME)
    positions = torch.arange(TOKENS)
    with torch.inference_mode(), active(_Observer(), _context(TOKENS)):
        model(input_ids=positions[None], position_ids=positions[None], use_cache=False)


def _observe(model: PreTrainedModel, layer: Any) -> AttentionCall:
    observer = _Observer()
    _run(model, layer, observer, _random_states(model, layer))
    if observer.call is None:
        raise RuntimeError("the layer did not call attention")
    return observer.call


def _error(model: PreTrainedModel, layer: Any, kernels: Native) -> float:
    """Largest difference between the layer's update of its input and the fused one's, relative."""
    fused = FusedStack([FusedLayer(layer, _observe(model, layer), kernels)], kernels)
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
    """[1, TOKENS, N] of the weights' type, the same each time."""
    size = model.config.get_text_config().hidden_size
    states = torch.randn(1, TOKENS, size, generator=torch.Generator().manual_seed(0))
    return states.to(layer.mlp.up_proj.weight.dtype)


def _run(model: PreTrainedModel, layer: Any, backend: AttentionBackend, states: torch.Tensor) -> torch.Tensor:
    """One layer on one short sequence, the way the model calls it."""
    tokens = states.shape[1]
    positions = torch.arange(tokens)
    factors = model.get_decoder().rotary_emb(states, positions[None])
    with active(backend, _context(tokens)):
        out: torch.Tensor = layer(
            states, attention_mask=None, position_ids=positions[None], position_embeddings=factors
        )
    return out


def _context(tokens: int) -> ForwardContext:
    """The context of one short sequence in the first block of a cache."""
    return ForwardContext(
        query_start=torch.tensor([0, tokens], dtype=torch.int32),
        context_lens=torch.tensor([tokens], dtype=torch.int32),
        block_tables=torch.zeros(1, 1, dtype=torch.int32),
        slots=torch.arange(tokens),
        query_lens=(tokens,),
        lens=(tokens,),
        block_size=16,
    )
