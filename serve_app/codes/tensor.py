"""Weights of a module that are still codes: tensors that have plain numbers only while they are used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import torch
from torch import nn
from torch.utils._pytree import tree_map

from serve_app.codes.matrix import QuantisedMatrix
from serve_app.codes.pages import new_tensor


class Source(Protocol):
    """Where the codes of one matrix [N, K] come from. They are read anew for each use."""

    @property
    def shape(self) -> tuple[int, int]: ...

    def codes(self) -> QuantisedMatrix | None:
        """On the device of the weight, checked. None: its rows have no common scheme."""
        ...

    def write_to(self, out: torch.Tensor) -> None:
        """Write the plain numbers to `out` [N, K]."""
        ...


class CodedTensor(torch.Tensor):
    """A weight of a model that takes no memory: its codes stay where they come from.

    [N, K], or [E, N, K] of experts. Functions of torch that only arrange weights (stack, cat, transpose, the
    choice of an expert or of rows) give a CodedTensor again. All others get plain numbers, which are computed
    for the call and freed after it. So a model runs as it is, if slowly, until `plain_weights` or the engine
    has taken the codes out of it.
    """

    sources: tuple[Source, ...]  # one, or one for each expert
    coded: bool  # false: plain numbers, which are in their file until they are used
    transposed: bool  # the last two dimensions are [K, N]
    place: torch.device

    @staticmethod
    def of(
        sources: Sequence[Source],
        dtype: torch.dtype,
        device: torch.device,
        *,
        experts: bool = False,
        transposed: bool = False,
        coded: bool = True,
    ) -> CodedTensor:
        """`dtype`: the type of the plain numbers. `coded`: whether any of the sources has codes."""
        rows, columns = sources[0].shape
        shape = (columns, rows) if transposed else (rows, columns)
        if experts:
            shape = (len(sources), *shape)  # type: ignore[assignment]
        empty = torch.empty(shape, dtype=dtype, device="meta")
        made = torch.Tensor._make_subclass(CodedTensor, empty)
        made.sources, made.transposed, made.place = tuple(sources), transposed, device
        made.coded = coded
        return made

    def matrix(self) -> QuantisedMatrix | None:
        """The codes of a weight [N, K]; None if its rows have no common scheme, or if it is [K, N]."""
        return None if self.transposed or self.dim() != 2 else self.sources[0].codes()

    def parts(self) -> tuple[Sequence[torch.Tensor], torch.Tensor | None]:
        """The weights [N, K] that this one has been put together from, coded or plain, and the order in which
        it has their rows; None: one after the other."""
        source, places = self.sources[0], None
        if isinstance(source, _Ordered):
            places, source = source.places, source.source
        found = source.sources if isinstance(source, _Joined) else (source,)
        return [each.weight if isinstance(each, _Plain) else self.again([each]) for each in found], places

    def numbers(self) -> torch.Tensor:
        """The plain numbers, in memory of their own; of experts, one at a time is in memory as codes."""
        out = new_tensor(tuple(self.shape), self.dtype, self.place)
        for source, each in zip(self.sources, out if self.dim() == 3 else [out], strict=True):
            source.write_to(each.T if self.transposed else each)
        return out

    def again(self, sources: Sequence[Source], **changed: Any) -> CodedTensor:
        """Another weight of the same kind."""
        kept = {"dtype": self.dtype, "experts": self.dim() == 3}
        kept |= {"transposed": self.transposed, "coded": self.coded}
        return CodedTensor.of(sources, device=self.place, **{**kept, **changed})

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        arrange = _ARRANGE.get(function)
        found = NotImplemented if arrange is None else arrange(*args, **kwargs)
        if found is not NotImplemented:
            return found
        if function in _FACTS:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **kwargs)
        known: dict[int, torch.Tensor] = {}

        def plain(each: Any) -> Any:
            return known.setdefault(id(each), each.numbers()) if isinstance(each, CodedTensor) else each

        return function(*tree_map(plain, tuple(args)), **tree_map(plain, dict(kwargs)))


def plain_weights(module: nn.Module) -> tuple[int, int]:
    """Let the weights of `module` that are still codes, or in their files, be plain numbers, one at a time;
    returns how many were codes, and the bytes of their numbers."""
    made: dict[int, nn.Parameter] = {}  # a tied weight is made once
    sizes = []
    for part in module.modules():
        parameters: dict[str, Any] = part._parameters
        for name, weight in parameters.items():
            if isinstance(weight, CodedTensor):
                if id(weight) not in made:
                    made[id(weight)] = nn.Parameter(weight.numbers(), requires_grad=False)
                    sizes += [weight.nbytes] if weight.coded else []
                parameters[name] = made[id(weight)]
    return len(sizes), sum(sizes)


class _Joined:
    """The rows of several matrices, one after the other."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources

    @property
    def shape(self) -> tuple[int, int]:
        return sum(each.shape[0] for each in self.sources), self.sources[0].shape[1]

    def codes(self) -> QuantisedMatrix | None:
        found = []
        for each in self.sources:
            codes = each.codes()
            if codes is None:
                return None
            found.append(codes)
        return QuantisedMatrix.joined(found)

    def write_to(self, out: torch.Tensor) -> None:
        sizes = [each.shape[0] for each in self.sources]
        for source, part in zip(self.sources, torch.split(out, sizes), strict=True):
            source.write_to(part)


class _Ordered:
    """Some rows of a matrix."""

    def __init__(self, source: Source, places: torch.Tensor) -> None:
        self.source, self.places = source, places

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.places), self.source.shape[1]

    def codes(self) -> QuantisedMatrix | None:
        found = self.source.codes()
        return None if found is None else found.rows(self.places.to(found.codes.device))

    def write_to(self, out: torch.Tensor) -> None:
        whole = torch.empty(self.source.shape, dtype=out.dtype, device=out.device)
        self.source.write_to(whole)
        out.copy_(whole[self.places.to(out.device)])


class _Plain:
    """A weight that has no codes, beside others that have."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.weight.shape
        return rows, columns

    def codes(self) -> None:
        return None

    def write_to(self, out: torch.Tensor) -> None:
        out.copy_(self.weight)


def _same(weight: CodedTensor, *_: Any, **__: Any) -> CodedTensor:
    return weight.again(weight.sources)


def _moved(weight: CodedTensor, *args: Any, **kwargs: Any) -> Any:
    device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
    if (device is not None and device.type != weight.place.type) or not (
        dtype or weight.dtype
    ).is_floating_point:
        return NotImplemented
    return weight if dtype in (None, weight.dtype) else weight.again(weight.sources, dtype=dtype)


def _turned(weight: CodedTensor, *dims: int, **named: int) -> Any:
    dims = (*dims, *named.values()) or (-2, -1)
    if {each % weight.dim() for each in dims} != {weight.dim() - 2, weight.dim() - 1}:
        return NotImplemented
    return weight.again(weight.sources, transposed=not weight.transposed)


def _chosen(weight: CodedTensor, index: Any) -> Any:
    if index is Ellipsis:
        return _same(weight)
    if weight.dim() == 3 and (isinstance(index, int) or (torch.is_tensor(index) and index.dim() == 0)):
        return weight.again([weight.sources[int(index)]], experts=False)
    if weight.dim() == 2 and not weight.transposed and torch.is_tensor(index) and index.dtype == torch.int64:
        return weight.again([_Ordered(weight.sources[0], index)])
    return NotImplemented


def _unbound(weight: CodedTensor, dim: int = 0) -> Any:
    if weight.dim() != 3 or dim != 0:
        return NotImplemented
    return tuple(weight.again([each], experts=False) for each in weight.sources)


def _stacked(weights: Any, dim: int = 0) -> Any:
    weights = _alike(weights)
    if weights is None or weights[0].dim() != 2 or dim != 0:
        return NotImplemented
    return weights[0].again([each.sources[0] for each in weights], experts=True)


def _put_together(weights: Any, dim: int = 0) -> Any:
    coded = next(each for each in weights if isinstance(each, CodedTensor))
    if coded.dim() == 2 and not coded.transposed and dim == 0:
        weights = [each if isinstance(each, CodedTensor) else _beside(each, coded) for each in weights]
    weights = _alike(weights)
    if weights is None:
        return NotImplemented
    first = weights[0]
    if dim % first.dim() == first.dim() - (1 if first.transposed else 2):  # rows
        if len({len(each.sources) for each in weights}) > 1:
            return NotImplemented
        return first.again([_Joined(each) for each in zip(*(each.sources for each in weights), strict=True)])
    if first.dim() == 3 and dim == 0:
        return first.again([source for each in weights for source in each.sources])
    return NotImplemented


def _beside(plain: torch.Tensor, coded: CodedTensor) -> torch.Tensor:
    """A plain weight [N, K] as a CodedTensor, if it can be put together with `coded`."""
    if plain.dim() != 2 or plain.dtype != coded.dtype:
        return plain
    return coded.again([_Plain(plain)])


def _alike(weights: Sequence[Any]) -> Sequence[CodedTensor] | None:
    """All of `weights`, if they are coded, of one type and turned the same way."""
    found = [each for each in weights if isinstance(each, CodedTensor)]
    kinds = {(each.dtype, each.transposed, each.dim(), each.sources[0].shape[1]) for each in found}
    return found if found and len(found) == len(weights) and len(kinds) == 1 else None


def _read(*names: str) -> tuple[Any, ...]:
    """The functions of torch that read these attributes of a tensor."""
    return tuple(getattr(torch.Tensor, name).__get__ for name in names)


_ARRANGE: Final[Mapping[Any, Callable[..., Any]]] = {
    **dict.fromkeys(
        (torch.Tensor.detach, torch.Tensor.contiguous, torch.Tensor.clone, *_read("data")), _same
    ),
    **dict.fromkeys((torch.Tensor.t, torch.t, *_read("T", "mT")), _turned),
    **dict.fromkeys(
        (torch.Tensor.transpose, torch.transpose, torch.Tensor.swapaxes, torch.swapaxes), _turned
    ),
    **dict.fromkeys((torch.Tensor.unbind, torch.unbind), _unbound),
    torch.Tensor.to: _moved,
    torch.Tensor.__getitem__: _chosen,
    torch.stack: _stacked,
    torch.cat: _put_together,
    **dict.fromkeys(_read("device"), lambda weight: weight.place),
    **dict.fromkeys(_read("is_meta"), lambda weight: False),
    torch.Tensor.new_zeros: lambda weight, *size, **options: torch.zeros(
        *size, **{"dtype": weight.dtype, "device": weight.place, **options}
    ),
}
# What torch says without numbers.
_FACTS: Final = frozenset(
    (
        *_read("shape", "dtype", "ndim", "nbytes", "itemsize", "requires_grad", "is_leaf"),
        *_read("grad", "grad_fn", "layout", "is_sparse"),
        *(getattr(torch.Tensor, name).__set__ for name in ("data", "requires_grad", "grad")),
        *(torch.Tensor.dim, torch.Tensor.size, torch.Tensor.numel, torch.Tensor.nelement),
        *(torch.Tensor.is_floating_point, torch.Tensor.is_complex, torch.Tensor.element_size),
        *(torch.is_floating_point, torch.is_complex, torch.Tensor.__len__, torch.Tensor.requires_grad_),
        torch._has_compatible_shallow_copy_type,
    )
)
