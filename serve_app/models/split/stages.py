"""The part of a model that one of several stages has: some layers in a row, and perhaps embedding or head.

The stage's module is the model's own class. Stand-ins without tensors take the places of the layers of other
stages, of the embedding except in the first stage, and of the head except in the last, so layers keep their
numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from transformers import PreTrainedModel

from serve_app.models.errors import ModelLoadError
from serve_app.models.split.layers import layers_of

_TOKENS: Final = 8
_MASKLESS: Final = "without masks"  # for an attention that transformers does not know, it makes none
# What layers get besides hidden states, and every stage computes by itself.
_KNOWN: Final = frozenset(
    {"attention_mask", "cache_position", "causal_mask", "padding_mask", "position_embeddings", "position_ids"}
)


@dataclass(frozen=True, slots=True)
class Stage:
    """One of several stages of a model. Paths are those of modules in the model."""

    layers: range  # those of the stage, by number
    at: str  # the list of layers
    count: int  # of the layers of all stages
    embedding: str
    head: str
    tied: bool  # embedding and head have the same weights
    in_tuples: bool  # what layers return

    @classmethod
    def of(cls, whole: PreTrainedModel, number: int, stages: int) -> Stage:
        """The stage `number`, from 0, of as many `stages`. `whole`: the model, on the meta device.

        Raises ModelLoadError if there are fewer layers than stages, or if layers pass on more than hidden
        states.
        """
        name, decoder = type(whole).__name__, whole.get_decoder()
        paths = {module: path for path, module in whole.named_modules()}
        layers = [layer for _, layer in layers_of(decoder)]
        if len(layers) < stages:
            raise _refused(name, stages, f"it has {len(layers)} layers")
        reasons = [_passes_more(decoder, layers, in_tuples=each) for each in (False, True)]
        if stages > 1 and all(reasons):
            raise _refused(name, stages, str(reasons[0]))
        head = paths[whole.get_output_embeddings()]
        return cls(
            layers=layers_of_stage(len(layers), number, stages),
            at=paths[layers[0]].rpartition(".")[0],
            count=len(layers),
            embedding=paths[whole.get_input_embeddings()],
            head=head,
            tied=f"{head}.weight" in whole.all_tied_weights_keys,
            in_tuples=reasons[0] is not None,
        )

    @property
    def is_first(self) -> bool:
        return self.layers.start == 0

    @property
    def is_last(self) -> bool:
        return self.layers.stop == self.count

    def has(self, path: str) -> bool:
        """Whether the stage has the tensor at `path`, or loads it as the same as one that it has."""
        if path.startswith(f"{self.at}."):
            number = path.removeprefix(f"{self.at}.").partition(".")[0]
            return not number.isdigit() or int(number) in self.layers or int(number) >= self.count
        if path.startswith(f"{self.embedding}."):
            return self.is_first or (self.tied and self.is_last)
        if path.startswith(f"{self.head}."):
            return self.is_last or (self.tied and self.is_first)
        return True

    def take(self, module: PreTrainedModel) -> None:
        """Put stand-ins into a whole model on the meta device, but for what tied weights are loaded into."""
        layers: Any = module.get_submodule(self.at)
        for number in range(self.count):
            if number not in self.layers:
                layers[number] = LayerElsewhere(layers[number], in_tuples=self.in_tuples)
        self._take_ends(module, tied=self.tied and (self.is_first or self.is_last))
        # transformers looks for both tensors of each pair
        paths = {path for path, _ in module.named_parameters(remove_duplicate=False)}
        pairs = module.all_tied_weights_keys.items()
        module.all_tied_weights_keys = {one: other for one, other in pairs if {one, other} <= paths}

    def finish(self, module: PreTrainedModel) -> None:
        """Put the last stand-ins into the stage's module, which is loaded."""
        self._take_ends(module, tied=False)

    def _take_ends(self, module: PreTrainedModel, *, tied: bool) -> None:
        embedding, head = module.get_input_embeddings(), module.get_output_embeddings()
        if not (self.is_first or tied or isinstance(embedding, EmbeddingElsewhere)):
            module.set_input_embeddings(EmbeddingElsewhere(embedding))
        if not (self.is_last or tied or isinstance(head, HeadElsewhere)):
            module.set_output_embeddings(HeadElsewhere(head))


def layers_of_stage(count: int, number: int, stages: int) -> range:
    """The layers of a stage: each has as many, but the first ones one more if that cannot be.

    The last stage has the head, which takes as long as some layers.
    """
    each, more = divmod(count, stages)
    start = number * each + min(number, more)
    return range(start, start + each + (number < more))


class LayerElsewhere(nn.Module):
    """A layer of another stage: it passes on hidden states."""

    def __init__(self, layer: nn.Module, *, in_tuples: bool) -> None:
        """`layer`: its plain attributes are what a decoder asks a layer for."""
        super().__init__()
        plain = {name: value for name, value in vars(layer).items() if isinstance(value, int | str)}
        self.__dict__.update(plain)
        self._in_tuples = in_tuples

    def forward(self, hidden_states: torch.Tensor, *others: object, **options: object) -> Any:
        return (hidden_states,) if self._in_tuples else hidden_states


class EmbeddingElsewhere(nn.Embedding):
    """The embedding of the first stage, in another one: rows that differ between tokens, but mean nothing."""

    def __init__(self, embedding: Any) -> None:
        nn.Module.__init__(self)
        self.num_embeddings, self.embedding_dim = embedding.num_embeddings, embedding.embedding_dim
        self.padding_idx = None
        self.register_parameter("weight", None)
        self._dtype = embedding.weight.dtype
        self._is_hf_initialized = True  # transformers has no numbers to choose

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """[...] -> [..., N]."""
        places = torch.arange(self.embedding_dim, device=input_ids.device)
        return ((input_ids[..., None] + 1) * (places + 7) % 61 / 30 - 1).to(self._dtype)


class HeadElsewhere(nn.Module):
    """The head of the last stage, in another one."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.weight = head.weight.new_empty(0).detach()  # of whose type some models make its inputs

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states


def _passes_more(decoder: Any, layers: Sequence[nn.Module], *, in_tuples: bool) -> str | None:
    """What the layers of a decoder on the meta device pass on besides hidden states; None if nothing.

    The layers themselves do not run. `in_tuples`: they return hidden states in a tuple.
    """
    text, width = decoder.config, decoder.get_input_embeddings().embedding_dim
    if getattr(text, "num_kv_shared_layers", None):
        return "its layers share keys and values"
    seen = _Seen(in_tuples=in_tuples)
    attention, text._attn_implementation = text._attn_implementation, _MASKLESS
    for layer in set(layers):  # a layer may be there several times
        layer.forward = seen
    try:
        with torch.inference_mode():
            decoder(inputs_embeds=torch.empty(1, _TOKENS, width, device="meta"), use_cache=False)
    except (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError, NotImplementedError):
        return seen.reason or "what its layers pass on is not known"
    finally:
        text._attn_implementation = attention
        for layer in set(layers):
            del layer.forward
    if seen.reason is None and seen.times != len(layers):
        return f"its {len(layers)} layers run {seen.times} times"
    return seen.reason


class _Seen:
    """Takes the place of the forward of every layer, and looks at what it gets."""

    def __init__(self, *, in_tuples: bool) -> None:
        self.times, self.reason = 0, None
        self._in_tuples = in_tuples
        self._last: torch.Tensor | None = None

    reason: str | None

    def __call__(self, *args: Any, **options: Any) -> Any:
        states = options.pop("hidden_states", None) if not args else args[0]
        if self._last is not None and states is not self._last:
            self.reason = self.reason or "something is computed between its layers"
        for value in args[1:]:  # masks
            if _has_numbers(value) and not (isinstance(value, torch.Tensor) and value.dim() == 4):
                self.reason = self.reason or "its layers get more than hidden states"
        for name in options.keys() - _KNOWN:
            if _has_numbers(options[name]):
                self.reason = self.reason or f"its layers get {name} besides hidden states"
        self.times += 1
        self._last = torch.empty_like(states)
        return (self._last,) if self._in_tuples else self._last


def _has_numbers(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return value.is_floating_point()
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return False
    each: Iterable[object] = value
    return any(map(_has_numbers, each))


def _refused(name: str, stages: int, reason: str) -> ModelLoadError:
    return ModelLoadError(f"{name} cannot be divided for pipeline_parallel {stages}: {reason}")
