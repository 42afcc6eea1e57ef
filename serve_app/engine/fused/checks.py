"""Which decoder layers have the structure of a fused layer, and whether a fused one gives their results.

Parts of a model run on one short random sequence, on the device where the model lies.
"""

from __future__ import annotations

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
from serve_app.engine.attention.recorder import Recorder
from serve_app.engine.attention.reference import ReferenceAttention
from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.fused.forward import FusedForward
from serve_app.engine.fused.layer import AttentionCall, DecoderStack
from serve_app.engine.model.forward import ATTENTION_NAME, active, check_takes_positions

LAYERS: Final = (LlamaDecoderLayer, MistralDecoderLayer, Qwen2DecoderLayer, Qwen3DecoderLayer)

TOKENS: Final = 5  # of the batches on which results are compared

# Of the largest output of a layer; the original rounds to its type after every operation.
TOLERANCE: Final = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}


SMALLEST: Final = 1e-6  # update that counts as one


def known(layer: Any, dtypes: frozenset[torch.dtype]) -> bool:
    """Whether a fused layer can replace `layer`: its class, activation and linears are known, of `dtypes`."""
    if type(layer) not in LAYERS or type(layer.mlp.act_fn) not in (SiLUActivation, nn.SiLU, GELUTanh):
        return False
    linears = [module for name, module in layer.named_modules() if name.endswith("_proj")]
    return all(type(linear) is nn.Linear and linear.weight.dtype in dtypes for linear in linears)


def run_model(model: PreTrainedModel, recorder: Recorder | None = None) -> None:
    """One forward of a few tokens, in which attention returns zeros; `recorder` notes how it is called."""
    check_takes_positions(model)
    model.set_attn_implementation(ATTENTION_NAME)
    positions = torch.arange(TOKENS, device=model.device)
    with torch.inference_mode(), active(recorder or Recorder(), _context(positions)):
        model(input_ids=positions[None], position_ids=positions[None], use_cache=False)


def observe(model: PreTrainedModel, layer: Any) -> AttentionCall:
    """How a decoder layer calls attention."""
    recorder = Recorder()
    _run(model, layer, recorder, _random_states(model, layer))
    if not recorder.calls:
        raise RuntimeError("the layer did not call attention")
    call = recorder.calls[-1]
    return AttentionCall(call.scale, call.window, call.softcap, call.sinks)


def layer_error(model: PreTrainedModel, layer: Any, fused: DecoderStack, backend: AttentionBackend) -> float:
    """Largest difference between the layer's update of its input and the fused one's, relative.

    `fused` is a stack of that layer alone, `backend` the attention that it is made for. The input is about
    as large as the update: the original rounds their sum, and that of a larger input would lose the update.
    """
    states = _random_states(model, layer)
    attention = layer.self_attn
    spec = LayerSpec(
        attention.k_proj.out_features // attention.head_dim, attention.head_dim, attention.head_dim
    )

    def update(module: Any, by: AttentionBackend) -> torch.Tensor:
        by.allocate((spec,) * (attention.layer_idx + 1), 1, 16, states.dtype, states.device)
        return _run(model, module, by, states).float() - states.float()

    states = states * float(update(layer, ReferenceAttention()).abs().max().clamp(SMALLEST, 1.0))
    want, got = update(layer, ReferenceAttention()), update(fused, backend)
    return float((got - want).abs().max() / want.abs().max().clamp_min(SMALLEST))


def forward_error(model: PreTrainedModel, fused: FusedForward, backend: AttentionBackend) -> float:
    """Largest difference between the logits of a model of fused layers and those of `fused`, relative."""
    config = model.config.get_text_config()
    device = model.device
    ids = torch.randint(config.vocab_size, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(TOKENS, device=device)
    inputs: dict[str, Any] = {
        "input_ids": ids.to(device),
        "position_ids": positions[None],
        "use_cache": False,
        "logits_to_keep": positions,
    }
    heads = config.num_key_value_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    layers = (LayerSpec(heads, size, size),) * config.num_hidden_layers
    backend.allocate(layers, 1, 16, model.dtype, device)
    with torch.inference_mode(), active(backend, _context(positions)):
        want, got = model(**inputs).logits.float(), fused(**inputs).logits.float()
    return float((got - want).abs().max() / want.abs().max().clamp_min(SMALLEST))


def _random_states(model: PreTrainedModel, layer: Any) -> torch.Tensor:
    """[1, TOKENS, N] of the weights' type, the same each time."""
    weight = layer.mlp.up_proj.weight
    size = model.config.get_text_config().hidden_size
    return torch.randn(1, TOKENS, size, generator=torch.Generator().manual_seed(0)).to(weight)


def _run(model: PreTrainedModel, layer: Any, backend: AttentionBackend, states: torch.Tensor) -> torch.Tensor:
    """One layer on one short sequence, the way the model calls it."""
    positions = torch.arange(states.shape[1], device=states.device)
    factors = model.get_decoder().rotary_emb(states, positions[None])
    with active(backend, _context(positions)):
        out: torch.Tensor = layer(
            states, attention_mask=None, position_ids=positions[None], position_embeddings=factors
        )
    return out


def _context(positions: torch.Tensor) -> ForwardContext:
    """The context of one short sequence in the first block of a cache."""
    tokens = len(positions)
    return ForwardContext(
        query_start=positions.new_tensor([0, tokens], dtype=torch.int32),
        context_lens=positions.new_tensor([tokens], dtype=torch.int32),
        block_tables=positions.new_zeros(1, 1, dtype=torch.int32),
        slots=positions,
        query_lens=(tokens,),
        lens=(tokens,),
        block_size=16,
    )
