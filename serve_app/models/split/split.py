"""How a model is divided among ranks: each part of a layer by what the names of its tensors say.

Each rank's module is the model's own class with narrower linears, so everything after the load works as for a
smaller model. Linears that read the residual keep some of their outputs, and linears that write to it keep
some of their inputs: the outputs of those parts of a layer are sums over ranks. Rows of embedding and head
are divided by vocabulary. A part of a layer that cannot be divided as a whole is the same in every rank. If
layers are divided among stages, too, the ranks of a stage have its layers alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from serve_app.config import ModelConfig
from serve_app.models.errors import ModelLoadError
from serve_app.models.split.cut import Cut
from serve_app.models.split.layers import divided, sums_of
from serve_app.models.split.names import Names, OtherForm, Piece
from serve_app.models.split.share import Share, narrow
from serve_app.models.split.sizes import indivisible
from serve_app.models.split.stages import Stage
from serve_app.models.stored import StoredTensor

# Linears that have those of several names side by side, as adapters name them.
JOINED: Final = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


_EXPERT: Final = re.compile(r"\blayers\.(?P<layer>\d+)\..*\.experts\.(?P<expert>\d+)\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The part of a model that one rank keeps."""

    rank: int  # among those of its stage
    ranks: int  # of a stage
    stage: Stage | None  # None: it has all layers
    vocab_size: int  # of the model
    names: Names
    divides_heads: bool = False  # of attention
    shares: Mapping[str, Share] = field(default_factory=dict)  # of parameters, by path
    linears: Mapping[tuple[int, str], Share] = field(default_factory=dict)  # by layer and name
    rows: Mapping[str, int] = field(default_factory=dict)  # of embedding and head, by path
    counts: Mapping[str, int] = field(default_factory=dict)  # attributes of modules, by path
    buffers: Mapping[str, Share] = field(default_factory=dict)
    # Where ranks meet, by the paths of modules in the decoder.
    summed: frozenset[str] = frozenset()  # modules whose outputs are sums over ranks
    norms: Mapping[str, int] = field(default_factory=dict)  # over the numbers of several ranks: how many
    experts: Mapping[str, int] = field(default_factory=dict)  # of which each rank has some: how many
    repeated: Mapping[str, str] = field(default_factory=dict)  # why a part is in every rank, by its name

    @classmethod
    def of(
        cls,
        whole: PreTrainedModel,
        rank: int,
        ranks: int,
        *,
        whole_experts: bool = False,
        stage: int = 0,
        stages: int = 1,
    ) -> Split:
        """`whole`: the model, on the meta device. `whole_experts`: whether experts are divided by number.

        `rank`: among the `ranks` of one `stage`, of as many `stages`, both from 0. Raises ModelLoadError,
        with the name of what cannot be divided.
        """
        name, text = type(whole).__name__, whole.config.get_text_config()
        if reason := indivisible(text.to_dict(), ranks, whole_experts=whole_experts):
            raise _refused(name, ranks, reason)
        decoder: Any = whole.get_decoder()
        own = None if stages == 1 else Stage.of(whole, stage, stages)
        vocab_size, rows = _vocabulary(whole, name, ranks)
        if ranks == 1:
            return cls(rank=0, ranks=1, stage=own, vocab_size=vocab_size, names=Names(whole, {}))
        found, repeated = divided(decoder, ranks, whole_experts=whole_experts)
        if whole_experts and not any(part.experts for part in found.values()):
            reason = "; ".join(("it has no experts that can be divided by number", *repeated.values()))
            raise _refused(name, ranks, reason)
        if not found:
            reasons = sorted(set(repeated.values())) or ["the names of its tensors are not known"]
            raise _refused(name, ranks, f"none of its layers can be: {'; '.join(reasons)}")
        attends = any(part.attends for part in found.values())
        at = next(path for path, module in whole.named_modules() if module is decoder)
        at = f"{at}." if at else ""
        if own is not None:
            found = {path: part for path, part in found.items() if own.has(f"{at}{path}.")}
            rows = {path: count for path, count in rows.items() if own.has(path)}
        shares: dict[str, Share] = {}
        buffers: dict[str, Share] = {}
        counts: dict[str, int] = {}
        for path, part in found.items():
            shares |= {f"{at}{path}.{each}": share for each, share in part.shares.items()}
            counts |= {f"{at}{path}.{each}": count for each, count in part.counts.items()}
            buffers |= {f"{at}{path}.{each}": share for each, share in part.buffers.items()}
        return cls(
            rank=rank,
            ranks=ranks,
            stage=own,
            vocab_size=vocab_size,
            divides_heads=attends,
            shares=shares,
            linears=dict(_linears(shares)),
            rows=rows,
            counts=counts,
            buffers=buffers,
            summed=frozenset(each for path, part in found.items() for each in sums_of(decoder, path, part)),
            norms={
                f"{path}.{each}": count for path, part in found.items() for each, count in part.norms.items()
            },
            experts={path: part.experts for path, part in found.items() if part.experts},
            repeated=repeated,
            names=Names(whole, shares),
        )

    @classmethod
    def of_rank(cls, whole: PreTrainedModel, rank: int, config: ModelConfig) -> Split:
        """As `of`, by the settings."""
        return cls.of(
            *(whole, rank % config.tensor_parallel, config.tensor_parallel),
            whole_experts=config.expert_parallel,
            stage=config.stage_of(rank),
            stages=config.pipeline_parallel,
        )

    def class_of(self, kind: type[PreTrainedModel]) -> type[PreTrainedModel]:
        """The class of the rank's module: `kind` with narrower parts, for as long as it is loaded."""

        def init(module: PreTrainedModel, config: PreTrainedConfig) -> None:
            kind.__init__(module, config)
            self.narrow(module)

        return type(kind.__name__, (kind,), {"__init__": init, "__module__": kind.__module__})

    def narrow(self, module: PreTrainedModel) -> None:
        """Make a whole model on the meta device the rank's part, but for what it computes with at last."""
        if self.stage is not None:
            self.stage.take(module)
        narrow(module, self.shares, self.rows)
        for path, count in self.counts.items():
            owner, _, name = path.rpartition(".")
            setattr(module.get_submodule(owner), name, count)

    def finish(self, module: PreTrainedModel) -> None:
        """Let buffers and settings of the rank's module, which is loaded, fit its parameters."""
        for path, share in self.buffers.items():
            owner, _, name = path.rpartition(".")
            place = module.get_submodule(owner)
            place._buffers[name] = share.cut(self.rank, self.ranks).of(place.get_buffer(name))
        if self.stage is not None:
            self.stage.finish(module)
        text: Any = module.config.get_text_config()
        text.vocab_size = self.vocab_rows
        if not self.divides_heads:
            return
        settings = text.to_dict()  # an attribute that differs between layers cannot be read
        heads = int(text.num_attention_heads)
        if settings.get("head_dim") is None and settings.get("kv_lora_rank") is None:
            text.head_dim = text.hidden_size // heads
        text.num_attention_heads = heads // self.ranks
        if isinstance(kv_heads := settings.get("num_key_value_heads"), int):
            text.num_key_value_heads = max(1, kv_heads // self.ranks)

    @property
    def vocab_rows(self) -> int:
        """The rows of the rank's embedding."""
        return next(iter(self.rows.values()), self.vocab_size)

    def needed(self, stored: Iterable[StoredTensor]) -> list[StoredTensor]:
        """The tensors of a checkpoint but those of other ranks' experts, and of other stages."""
        return [each for each in stored if self._needs(each.name)]

    def _needs(self, name: str) -> bool:
        if self.stage is not None and not self.stage.has(self.names.path(name)):
            return False
        found = _EXPERT.search(name)
        if found is None:
            return True
        count = self._experts_of(int(found["layer"]))
        return count is None or int(found["expert"]) // count == self.rank

    def _experts_of(self, layer: int) -> int | None:
        return next((count for path, count in self.experts.items() if str(layer) in path.split(".")), None)

    def cut_of(self, name: str, shape: tuple[int, ...]) -> Cut | None:
        """As `CutOf`, of the tensors of a checkpoint. Raises ModelLoadError for one in a form that cannot be
        divided."""
        piece = self._piece(name, shape)
        if part := self.rows.get(piece.path):
            start = min(shape[0], self.rank * part)
            return Cut(0, ((start, min(shape[0], start + part)),), part)
        return None if piece.share is None else piece.share.cut(self.rank, self.ranks)

    def whole(self, layer: int, module: str, shape: tuple[int, int]) -> tuple[int, int]:
        """The shape (N, K) of a layer's linear in the whole model, by that of the rank's part."""
        (outputs, inputs), side = shape, self._side(layer, module)
        if side is None:
            return shape
        dim, parts = side
        return (outputs * parts, inputs) if dim == 0 else (outputs, inputs * parts)

    def part(
        self, layer: int, module: str, a: torch.Tensor, b: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The rank's parts of an adapter's matrices A [r, K] and B [N, r] at a linear of a layer."""
        side = self._side(layer, module)
        if side is None:
            return a, b
        dim, parts = side
        size = (b.shape[0], a.shape[1])[dim]
        cut = Share(dim, ((size, size // parts),)).cut(self.rank, self.ranks)
        return (a, cut.of(b)) if dim == 0 else (cut.of(a), b)

    def _side(self, layer: int, module: str) -> tuple[int, int] | None:
        """The dimension of a linear's weight that is divided, and into how many parts; None: it is whole."""
        beside = next((name for name, modules in JOINED.items() if module in modules), "")
        if share := self.linears.get((layer, module)):
            sides = share.sides[0]
        elif share := self.linears.get((layer, beside)):
            sides = share.sides[JOINED[beside].index(module)]
        else:
            return None
        return share.dim, sides[0] // sides[1]

    def _piece(self, name: str, shape: tuple[int, ...]) -> Piece:
        try:
            return self.names.piece(name, shape)
        except OtherForm as error:
            raise ModelLoadError(
                f"this checkpoint cannot be divided for tensor_parallel {self.ranks}: its {error} is stored "
                "in another form than its layers have"
            ) from error


def _linears(shares: Mapping[str, Share]) -> Iterator[tuple[tuple[int, str], Share]]:
    for path, share in shares.items():
        *place, name, kind = path.split(".")
        if kind == "weight":
            yield (int(next(each for each in place if each.isdigit())), name), share


def _vocabulary(whole: PreTrainedModel, name: str, ranks: int) -> tuple[int, dict[str, int]]:
    """The size of the vocabulary, and how many rows a rank has of each tensor of embedding and head."""
    embedding, head = whole.get_input_embeddings(), whole.get_output_embeddings()
    if not isinstance(embedding, nn.Embedding) or not isinstance(head, nn.Linear):
        raise _refused(name, ranks, "its embedding and its head are no plain matrices")
    tensors = {id(each): len(each) for each in (embedding.weight, head.weight, head.bias) if each is not None}
    rows = {
        path: -(-tensors[id(each)] // ranks)
        for path, each in whole.named_parameters(remove_duplicate=False)
        if id(each) in tensors
    }
    for path in rows:  # no other module knows that it has some of the rows
        if whole.get_submodule(path.rpartition(".")[0]) not in (embedding, head):
            raise _refused(name, ranks, f"its embedding has another place, {path}")
    return head.out_features, rows


def _refused(name: str, ranks: int, reason: str) -> ModelLoadError:
    return ModelLoadError(f"{name} cannot be divided for tensor_parallel {ranks}: {reason}")
