"""The experts of a layer on a GPU: a function behind transformers' experts interface, over its own weights.

Rows are sorted by expert on the device. One launch multiplies all of them by the gate and up weights and
combines the results; another one multiplies by the down weights. The number and size of launches depend only
on the number of rows, so graphs can record them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn
from transformers.integrations.moe import ExpertsInterface

from serve_app.codes.tensor import CodedTensor, plain_weights
from serve_app.engine.attention.triton.early import early_start
from serve_app.engine.attention.triton.launcher import Launcher
from serve_app.engine.attention.triton.tiles import power_of_two
from serve_app.engine.cuda.experts import kernels
from serve_app.engine.cuda.experts.codes_kernels import multiply_pairs_by_codes
from serve_app.engine.experts.gate import Gate, gate_of, interleaved, is_experts
from serve_app.engine.weights.codes_product import decoding
from serve_app.engine.weights.decoding import STEP
from serve_app.engine.weights.gpu_codes import GpuCodes
from serve_app.engine.weights.gpu_own_codes import gpu_codes_of, joined

NAME: Final = "serve_app_grouped"  # of the function, to transformers
PLACE: Final = "grouped_experts"  # the attribute of a module that has them
FEW, MANY = 16, 64  # pairs of a tile
COLUMNS: Final = 64  # of a product's tile
# Of a row that are read at once: they decide the order of a sum, so they are always the same.
BYTES: Final = 128
SORTED, ADDED = 1024, 1024  # numbers of a program at a time
TYPES: Final = frozenset({torch.float32, torch.bfloat16, torch.float16})

_SORT, _MULTIPLY, _ADD = map(Launcher, (kernels.sort_pairs, kernels.multiply_pairs, kernels.add_pairs))
_MULTIPLY_CODES = Launcher(multiply_pairs_by_codes)

Choose = Callable[[torch.Tensor], GpuCodes]
Matrix = torch.Tensor | GpuCodes  # [E, N, K] or [E, K, N]; codes of [E * N, K]


class GroupedExperts:
    """Computes the same as an experts module of transformers, by kernels over the module's weights."""

    def __init__(self, module: nn.Module, choose: Choose | None = None) -> None:
        """`choose` gives the codes of a matrix. Weights that are codes already stay codes if they have a
        product. The module's own weights are then freed.
        """
        experts: Any = module
        self._module = experts
        self._gate = gate_of(experts)
        self._in_turn = not experts.is_concatenated
        self._transposed: bool = experts.is_transposed
        name = "gate_up_proj" if experts.has_gate else "up_proj"
        up, down = getattr(experts, name), experts.down_proj
        self._biases: list[torch.Tensor | None] = [None, None]
        if experts.has_bias:
            self._biases = [getattr(experts, f"{name}_bias"), experts.down_proj_bias]
        self._up: Matrix = up
        self._down: Matrix = down
        self._count, self._dtype = len(down), down.dtype
        made = self._codes_of(choose, up, down)
        if made is not None:
            self._up, self._down = made
            del experts._parameters[name], experts._parameters["down_proj"]
        elif isinstance(down, CodedTensor):
            plain_weights(module)
            self._up, self._down = getattr(experts, name), experts.down_proj

    @property
    def in_codes(self) -> bool:
        return isinstance(self._down, GpuCodes)

    @property
    def num_bytes(self) -> int:
        """The bytes of the weights, without biases."""
        return sum(
            each.num_bytes if isinstance(each, GpuCodes) else each.nbytes for each in (self._up, self._down)
        )

    def _codes_of(
        self, choose: Choose | None, up: torch.Tensor, down: torch.Tensor
    ) -> tuple[GpuCodes, GpuCodes] | None:
        """The codes of the weights, in which gates come before ups; None: they stay as they are."""
        if choose is None and not isinstance(down, CodedTensor):
            return None
        if self._transposed:
            up, down = up.mT, down.mT
        ordered, bias = self._gate is not None and self._in_turn, self._biases[0]
        order = interleaved(up.shape[1]).to(up.device) if ordered else None
        made = _codes(up, choose, order), _codes(down, choose, None)
        if made[0] is None or made[1] is None:
            return None
        if order is not None and bias is not None:
            self._biases[0] = bias[:, order]
        self._in_turn = self._transposed = False
        return made[0], made[1]

    def __call__(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """x [T, N], the numbers of each row's experts [T, K] and their weights -> [T, N] of the type of x.

        A number beyond the last expert selects no expert.
        """
        experts, (rows, share) = self._module, chosen.shape
        if not rows:
            return torch.zeros_like(x)
        normed = bool(getattr(experts, "has_post_expert_norm", False))
        pairs = Pairs(chosen.reshape(-1).long().contiguous(), self._count)
        x, weights = x.to(self._dtype).contiguous(), weights.reshape(-1).contiguous()
        made = self._multiply(pairs, x, self._up, self._biases[0], share=share, gate=self._gate)
        if self._gate is None:
            made = experts._apply_gate(made) if experts.has_gate else experts.act_fn(made)
        scale = None if normed else weights
        made = self._multiply(pairs, made.contiguous(), self._down, self._biases[1], scale=scale)
        if normed:
            made = experts.post_expert_norm(made) * weights[:, None].to(made.dtype)
        return pairs.add(made.contiguous(), rows)

    def _multiply(
        self, pairs: Pairs, x: torch.Tensor, matrix: Matrix, bias: torch.Tensor | None, **options: Any
    ) -> torch.Tensor:
        if isinstance(matrix, GpuCodes):
            return pairs.multiply_codes(x, matrix, bias, **options)
        options |= {"in_turn": self._in_turn, "transposed": self._transposed}
        return pairs.multiply(x, matrix, bias, **options)


class Pairs:
    """The pairs of a step's rows and their experts, sorted by expert."""

    def __init__(self, chosen: torch.Tensor, experts: int) -> None:
        """`chosen` [P] int64."""
        count = len(chosen)
        self._chosen, self._experts = chosen, experts
        self._size = FEW if count <= FEW * experts else MANY
        others = count // self._size + experts
        self._order = chosen.new_empty(count, dtype=torch.int32)
        self._tiles = chosen.new_empty(min(count, others), 3, dtype=torch.int32)
        _SORT(
            (experts,),
            *(chosen, self._order, self._tiles, count),
            EXPERTS=experts,
            M=self._size,
            BY_PAIR=count <= others,
            AT_ONCE=min(SORTED, power_of_two(count)),
            **early_start(chosen.device),
        )

    def multiply(
        self,
        x: torch.Tensor,
        matrix: torch.Tensor,
        bias: torch.Tensor | None,
        *,
        share: int = 1,
        gate: Gate | None = None,
        in_turn: bool = False,
        scale: torch.Tensor | None = None,
        transposed: bool = False,
    ) -> torch.Tensor:
        """x [P / share, K] times matrix [E, N, K] or, if `transposed`, [E, K, N], plus bias [E, N] -> [P, N].

        With a `gate` the result is [P, N / 2]: the gates come before the ups, or `in_turn` with them. `scale`
        [P]: a factor for each pair. The result of a pair without an expert is not written.
        """
        if transposed:
            matrix = matrix.mT
        columns, inputs = matrix.shape[1:]
        if x.shape[1] != inputs or len(x) * share != len(self._chosen) or x.dtype != matrix.dtype:
            raise ValueError(f"rows of {tuple(x.shape)} and {x.dtype} do not fit the experts")
        outputs = columns if gate is None else columns // 2
        apart, up = (2, 1) if in_turn else (1, outputs)
        out = x.new_empty(len(self._chosen), outputs)
        clamps = (0.0, 1.0, 0.0) if gate is None else (gate.limit, gate.alpha, gate.added)
        _MULTIPLY(
            (len(self._tiles), -(-outputs // COLUMNS)),
            *(x, matrix, matrix if bias is None else bias.contiguous(), x if scale is None else scale, out),
            *(self._order, self._tiles, *matrix.stride(), columns, *clamps),
            INPUTS=inputs,
            OUTPUTS=outputs,
            SHARE=share,
            GATE=_kind(gate),
            APART=1 if gate is None else apart,
            UP=up,
            BIAS=bias is not None,
            SCALED=scale is not None,
            M=self._size,
            N=COLUMNS,
            STEP=BYTES // x.element_size(),
            num_warps=4,
            num_stages=3,
            **early_start(x.device),
        )
        return out

    def multiply_codes(
        self,
        x: torch.Tensor,
        codes: GpuCodes,
        bias: torch.Tensor | None,
        *,
        share: int = 1,
        gate: Gate | None = None,
        scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As `multiply`, with codes of a matrix [E * N, K], in which gates come before ups."""
        columns = codes.outputs // self._experts
        if x.shape[1] != codes.inputs or len(x) * share != len(self._chosen):
            raise ValueError(f"rows of {tuple(x.shape)} do not fit the experts")
        outputs = columns if gate is None else columns // 2
        out = x.new_empty(len(self._chosen), outputs)
        clamps = (0.0, 1.0, 0.0) if gate is None else (gate.limit, gate.alpha, gate.added)
        _MULTIPLY_CODES(
            (len(self._tiles), -(-outputs // COLUMNS)),
            *(x, codes.words, codes.scales, codes.words if codes.zeros is None else codes.zeros),
            *(x if bias is None else bias.contiguous(), x if scale is None else scale, out),
            *(self._order, self._tiles, columns, codes.outputs, *clamps),
            K=codes.inputs,
            OUTPUTS=outputs,
            STEP=STEP,
            STEPS=-(-codes.inputs // STEP),
            SHARE=share,
            GATE=_kind(gate),
            BIAS=bias is not None,
            SCALED=scale is not None,
            M=self._size,
            N=COLUMNS,
            GROUP=codes.group,
            ZEROS=codes.zeros is not None,
            WHOLE=outputs % COLUMNS == 0,
            **decoding(codes.form, x.dtype),
            num_warps=4,
            num_stages=3,
            **early_start(x.device),
        )
        return out

    def add(self, parts: torch.Tensor, rows: int) -> torch.Tensor:
        """[P, N] -> [rows, N]: the sum of the pairs of each row, in float32 and in their order."""
        out = parts.new_empty(rows, parts.shape[1])
        step = min(ADDED, power_of_two(parts.shape[1]))
        _ADD(
            (rows, -(-parts.shape[1] // step)),
            *(parts, self._chosen, out),
            K=len(self._chosen) // rows,
            SIZE=parts.shape[1],
            EXPERTS=self._experts,
            STEP=step,
            **early_start(parts.device),
        )
        return out


def _codes(weight: torch.Tensor, choose: Choose | None, order: torch.Tensor | None) -> GpuCodes | None:
    """The codes of all experts' outputs, in this order for each; None if there is no product for them.

    `weight` [E, N, K].
    """
    if choose is not None:
        ordered = weight if order is None else weight[:, order]
        return choose(ordered.detach().flatten(0, 1))
    parts = []
    for each in weight.unbind():
        expert: Any = each if order is None else each[order]
        matrix = expert.matrix()
        made = None if matrix is None else gpu_codes_of(matrix)
        if made is None:
            return None
        parts.append(made)
    return joined(parts)


def _kind(gate: Gate | None) -> int:
    """The form of a gate, as the kernels number them."""
    return 0 if gate is None else 3 if gate.limit else 2 if gate.gelu else 1


def has_grouped(module: nn.Module) -> bool:
    """Whether a module has experts that these kernels can multiply by."""
    return is_experts(module) and module.get_parameter("down_proj").dtype in TYPES


def group_experts(model: nn.Module, choose: Choose | None = None) -> Callable[[], None] | None:
    """Let the kernels compute the experts of `model`.

    Returns a function that undoes this; None: there are no experts. `choose` gives the codes of a matrix: the
    experts' own weights are then freed, and it cannot be undone.
    """
    found: list[Any] = [module for module in model.modules() if has_grouped(module)]
    before = [module.config._experts_implementation for module in found]

    def undo() -> None:
        for module, name in zip(found, before, strict=True):
            delattr(module, PLACE)
            module.config._experts_implementation_internal = name

    for module in found:
        setattr(module, PLACE, GroupedExperts(module, choose))
        module.config._experts_implementation_internal = NAME
    return undo if found else None


def _grouped(module: nn.Module, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    experts: GroupedExperts = getattr(module, PLACE)
    return experts(x, chosen, weights)


ExpertsInterface.register(NAME, _grouped)
