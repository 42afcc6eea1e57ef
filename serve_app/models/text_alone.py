"""The language model inside a model that reads more than text, without the parts for images and sound.

Those parts are freed: text needs none of them. If transformers has a causal language model for the inner
configuration, and that model computes the same, it takes over the weights. The engine then treats it like any
other model.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from serve_app.models.errors import ModelLoadError

TOKENS: Final = 5  # of the prompt that compares the models


def language_model(whole: PreTrainedModel) -> PreTrainedModel:
    """A model that computes the logits of `whole` for text; `whole` is taken apart.

    On torch's meta device, nothing is computed. Raises ModelLoadError if `whole` computes nothing for text.
    """
    if whole.device.type == "meta":
        return _causal(whole) or _without(_other_parts(whole), whole)
    try:
        want = _logits(whole)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ModelLoadError(
            f"{type(whole).__name__} cannot be served: it computes nothing for text alone ({reason})"
        ) from error
    alone = _causal(whole)
    if alone is not None and torch.equal(_logits(alone), want):
        return alone
    others = _other_parts(whole)
    _without(others, whole)
    try:
        same = torch.equal(_logits(whole), want)
    except AttributeError:  # its text passes through one of them
        same = False
    if not same:
        for parent, name, part in others:
            setattr(parent, name, part)
    return whole


def _logits(model: PreTrainedModel) -> torch.Tensor:
    """The logits [T, V] of a short prompt."""
    count = model.config.get_text_config().vocab_size
    ids = torch.randint(count, (1, TOKENS), generator=torch.Generator().manual_seed(0)).to(model.device)
    positions = torch.arange(TOKENS, device=model.device)[None]
    with torch.inference_mode():
        found: torch.Tensor = model(input_ids=ids, position_ids=positions, use_cache=False).logits[0]
        return found


def _causal(whole: PreTrainedModel) -> PreTrainedModel | None:
    """Transformers' causal language model around `whole`'s decoder and head; None if it has no such class."""
    decoder: Any = whole.get_decoder()
    head, config = whole.get_output_embeddings(), decoder.config
    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if head is None or kind is None or kind.config_class is not type(config):
        return None
    with torch.device("meta"):
        alone: PreTrainedModel = kind(config)
    if type(alone.base_model) is not type(decoder):
        return None
    setattr(alone, alone.base_model_prefix, decoder)
    alone.set_output_embeddings(head)
    given = {id(tensor) for part in (decoder, head) for tensor in (*part.parameters(), *part.buffers())}
    if any(id(tensor) not in given for tensor in (*alone.parameters(), *alone.buffers())):
        return None  # it has weights of its own
    return alone.eval()


def _other_parts(whole: PreTrainedModel) -> list[tuple[nn.Module, str, nn.Module]]:
    """Every part outside decoder, embeddings and head, with its parent module and its name in the parent."""
    text = (whole.get_decoder(), whole.get_input_embeddings(), whole.get_output_embeddings())
    kept = {each for part in text if isinstance(part, nn.Module) for each in part.modules()}
    return [
        (parent, name, part)
        for parent in whole.modules()
        if parent not in kept and not kept.isdisjoint(parent.modules())
        for name, part in parent.named_children()
        if kept.isdisjoint(part.modules())
    ]


def _without(parts: list[tuple[nn.Module, str, nn.Module]], whole: PreTrainedModel) -> PreTrainedModel:
    """`whole`, with `parts` taken out of it."""
    for parent, name, _ in parts:
        delattr(parent, name)
    return whole
