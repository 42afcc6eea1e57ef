"""Packers of quantised weights, each written after the document of its format and not after our readers.

A packer takes the name of a module and its weight [N, K], and gives the tensors that stand for the weight,
and the numbers that they mean.
"""

from __future__ import annotations

import json

import torch

from tests.support.quantised import Tensors, bit_stream, group_codes, meaning

FP8_MOST = 448.0  # of float8_e4m3fn
MXFP4_VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
NF4_VALUES = torch.tensor(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ]
)
Packed = tuple[Tensors, torch.Tensor]


def expand(scales: torch.Tensor, block: tuple[int, int], shape: torch.Size) -> torch.Tensor:
    """Scales of blocks -> a scale for each number."""
    whole = scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return whole[: shape[0], : shape[1]]


def fp8(
    module: str, weight: torch.Tensor, block: tuple[int, int] | None = None, ending: str = "weight_scale"
) -> Packed:
    """DeepSeek-V3's and transformers' FP8: a scale for each block [N', K'], the last ones partial, or without
    `block` for the whole tensor."""
    rows, columns = weight.shape
    tall, wide = block or (rows, columns)
    scales = torch.stack(
        [
            torch.stack([part.abs().max() / FP8_MOST for part in band.split(wide, 1)])
            for band in weight.split(tall)
        ]
    )
    whole = expand(scales, (tall, wide), weight.shape)
    codes = (weight / whole).to(torch.float8_e4m3fn)
    stored = scales if block else scales.reshape(())
    return {f"{module}.weight": codes, f"{module}.{ending}": stored}, codes.float() * whole


def fp8_rows(module: str, weight: torch.Tensor) -> Packed:
    """compressed-tensors' `float-quantized` with a scale for each channel, in bfloat16, [N, 1]."""
    scales = (weight.abs().amax(1, keepdim=True) / FP8_MOST).bfloat16()
    codes = (weight / scales.float()).clamp(-FP8_MOST, FP8_MOST).to(torch.float8_e4m3fn)
    return {f"{module}.weight": codes, f"{module}.weight_scale": scales}, codes.float() * scales.float()


def int8_rows(module: str, weight: torch.Tensor) -> Packed:
    """compressed-tensors' `int-quantized`: W8A8 with a scale for each channel."""
    scales = weight.abs().amax(1, keepdim=True) / 127
    codes = (weight / scales).round().to(torch.int8)
    return {f"{module}.weight": codes, f"{module}.weight_scale": scales}, codes.float() * scales


def gptq(
    module: str,
    weight: torch.Tensor,
    bits: int = 4,
    group: int = 16,
    *,
    symmetric: bool = False,
    act_order: bool = False,
    version: int = 1,
    with_order: bool = True,
) -> Packed:
    """AutoGPTQ's layout: `qweight` packed along K, `qzeros` along N and in version 1 minus one."""
    columns = weight.shape[1]
    group = columns if group == -1 else group
    groups = torch.arange(columns) // group
    if act_order:
        groups = groups[torch.randperm(columns, generator=torch.Generator().manual_seed(columns))]
    order = groups.argsort(stable=True)  # columns of one group side by side, as its scales were found
    sorted_codes, scales, zeros = group_codes(weight[:, order], bits, group, symmetric=symmetric)
    codes = torch.empty_like(sorted_codes)
    codes[:, order] = sorted_codes
    stored = (zeros - 1) % 2**bits if version == 1 else zeros
    tensors = {
        f"{module}.qweight": bit_stream(codes, bits).T.contiguous(),
        f"{module}.qzeros": bit_stream(stored.T, bits),
        f"{module}.scales": scales.T.half().contiguous(),
    }
    if with_order:
        tensors[f"{module}.g_idx"] = groups.int()
    return tensors, meaning(codes, scales, zeros, groups)


def pack_quantized(
    module: str,
    weight: torch.Tensor,
    bits: int = 4,
    group: int = 16,
    *,
    symmetric: bool = True,
    act_order: bool = False,
) -> Packed:
    """compressed-tensors' `pack-quantized`: codes plus half their range along K, zeros likewise along N."""
    columns = weight.shape[1]
    groups = torch.arange(columns) // group
    if act_order:
        groups = groups[torch.randperm(columns, generator=torch.Generator().manual_seed(columns))]
    order = groups.argsort(stable=True)
    sorted_codes, scales, zeros = group_codes(weight[:, order], bits, group, symmetric=symmetric)
    codes = torch.empty_like(sorted_codes)
    codes[:, order] = sorted_codes
    tensors = {
        f"{module}.weight_packed": bit_stream(codes, bits),
        f"{module}.weight_scale": scales.half(),
        f"{module}.weight_shape": torch.tensor(weight.shape),
    }
    if not symmetric:
        tensors[f"{module}.weight_zero_point"] = bit_stream(zeros.T, bits).T.contiguous()
    if act_order:
        tensors[f"{module}.weight_g_idx"] = groups.int()
    return tensors, meaning(codes, scales, zeros, groups)


def awq(module: str, weight: torch.Tensor, group: int = 16) -> Packed:
    """AutoAWQ's GEMM layout: eight codes of a word are those of the outputs 0, 2, 4, 6, 1, 3, 5, 7."""
    codes, scales, zeros = group_codes(weight, 4, group, symmetric=False)

    def words(numbers: torch.Tensor) -> torch.Tensor:
        """[K, N] -> [K, N / 8]."""
        packed = torch.zeros(len(numbers), numbers.shape[1] // 8, dtype=torch.int32)
        for place, output in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
            packed |= numbers[:, output::8].int() << (4 * place)
        return packed

    tensors = {
        f"{module}.qweight": words(codes.T),
        f"{module}.qzeros": words(zeros.T),
        f"{module}.scales": scales.T.half().contiguous(),
    }
    return tensors, meaning(codes, scales, zeros, torch.arange(weight.shape[1]) // group)


def bnb_int8(module: str, weight: torch.Tensor) -> Packed:
    """LLM.int8(): a scale of 127ths for each row, and the number of the layout of rows."""
    most = weight.abs().amax(1)
    codes = (weight * (127 / most[:, None])).round().to(torch.int8)
    tensors = {
        f"{module}.weight": codes,
        f"{module}.SCB": most,
        f"{module}.weight_format": torch.tensor(0, dtype=torch.uint8),
    }
    return tensors, codes.float() * (most / 127)[:, None]


def nf4(module: str, weight: torch.Tensor, *, nested: bool = False) -> Packed:
    """QLoRA's NF4 (its appendix E) in blocks of 32; `nested`: scales are codes of a table, in blocks of 5."""
    rows, columns = weight.shape
    parts = weight.view(-1, 32)
    most = parts.abs().amax(1)
    scales = most
    state: dict[str, object] = {
        "quant_type": "nf4",
        "blocksize": 32,
        "dtype": "float32",
        "shape": [rows, columns],
    }
    name = f"{module}.weight"
    tensors = {f"{name}.absmax": most, f"{name}.quant_map": NF4_VALUES.clone()}
    if nested:
        table, offset = torch.linspace(-1, 1, 256), most.mean()
        outer = torch.stack([each.abs().max() for each in (most - offset).split(5)])
        wide = outer.repeat_interleave(5)[: len(most)]
        numbers = ((most - offset) / wide - table[:, None]).abs().argmin(0)
        scales = table[numbers] * wide + offset
        state |= {"nested_blocksize": 5, "nested_dtype": "float32", "nested_offset": float(offset)}
        tensors[f"{name}.absmax"] = numbers.to(torch.uint8)
        tensors |= {f"{name}.nested_absmax": outer, f"{name}.nested_quant_map": table}
    codes = (parts / scales[:, None]).flatten()[:, None].sub(NF4_VALUES).abs().argmin(1)
    text = json.dumps(state).encode()
    tensors |= {
        name: (codes[0::2] << 4 | codes[1::2]).to(torch.uint8)[:, None],
        f"{name}.quant_state.bitsandbytes__nf4": torch.frombuffer(bytearray(text), dtype=torch.uint8),
    }
    return tensors, (NF4_VALUES[codes].view(-1, 32) * scales[:, None]).view(rows, columns)


def mxfp4(name: str, weight: torch.Tensor) -> Packed:
    """gpt-oss's experts: weight [E, K, N] -> `X_blocks` [E, N, K / 32, 16] and `X_scales` [E, N, K / 32]."""
    parts = weight.transpose(1, 2).unflatten(2, (-1, 32))
    exponents = (parts.abs().amax(3) / 6).log2().ceil().clamp(-127, 127)
    codes = (parts[..., None] / exponents.exp2()[..., None, None] - MXFP4_VALUES).abs().argmin(-1)
    meant = MXFP4_VALUES[codes] * exponents.exp2()[..., None]
    tensors = {
        f"{name}_blocks": (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8),
        f"{name}_scales": (exponents + 127).to(torch.uint8),
    }
    return tensors, meant.flatten(2).transpose(1, 2).contiguous()


def nvfp4(module: str, weight: torch.Tensor, *, divides: bool = False) -> Packed:
    """ModelOpt's NVFP4, or with `divides` compressed-tensors' `nvfp4-pack-quantized`: an E2M1 code for each
    number, a float8 scale for sixteen, and a float32 scale by which those are multiplied or divided."""
    parts = weight.view(len(weight), -1, 16)
    most = parts.abs().amax(2)
    outer = (most.max() / (6 * FP8_MOST)).reshape(1)
    stored = 1 / outer if divides else outer
    scales = (most / 6 / outer).to(torch.float8_e4m3fn)
    whole = scales.float() / stored if divides else scales.float() * stored
    codes = (parts[..., None] / whole[..., None, None] - MXFP4_VALUES).abs().argmin(-1)
    meant = (MXFP4_VALUES[codes] * whole[..., None]).flatten(1)
    packed = codes.flatten(1)
    names = ("weight_packed", "weight_global_scale") if divides else ("weight", "weight_scale_2")
    return {
        f"{module}.{names[0]}": (packed[:, 0::2] | packed[:, 1::2] << 4).to(torch.uint8),
        f"{module}.weight_scale": scales,
        f"{module}.{names[1]}": stored if divides else stored.reshape(()),
        f"{module}.{'input_global_scale' if divides else 'input_scale'}": torch.ones(1),
    }, meant
