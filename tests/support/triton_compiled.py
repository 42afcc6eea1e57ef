"""The Triton kernels compiled for a GPU, on a machine without one: types, layouts and shared memory.

    python -m tests.support.triton_compiled sm_90 bf16 plain|all|latent HEADS KV_HEADS KEY_DIM VALUE_DIM

Prints a line for each kernel: its name, the bytes of shared memory that a program takes, and the bytes of
stack that a thread takes, where registers are spilled. Pointers are aligned as they are where the engine
launches the kernels: the compiler then loads 16 bytes at once, and through shared memory. Kernels that know
the cache come a second time, with a cache of codes, as NAME/codes, unless values are latent. What Triton's
interpreter takes and its compiler refuses fails here.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from serve_app.engine.attention.triton import dividing, kernels, writing
from serve_app.engine.attention.triton.backend import JOINED, WRITTEN
from serve_app.engine.attention.triton.codes import ROUNDED
from serve_app.engine.attention.triton.plan import PART, PARTS
from serve_app.engine.attention.triton.tiles import (
    LARGE_SHARED,
    Tile,
    groups_of,
    pads,
    power_of_two,
    tile_of_decodes,
    tile_of_prompts,
)
from serve_app.engine.cuda import kernels as layer_kernels
from serve_app.engine.cuda.adapters import kernels as adapter_kernels
from serve_app.engine.cuda.adapters.slots import INPUTS, OUTPUTS, RANKS
from serve_app.engine.cuda.adapters.tiles import FEW, MANY
from serve_app.engine.cuda.experts import grouped as expert_tiles
from serve_app.engine.cuda.experts import kernels as expert_kernels
from serve_app.engine.cuda.experts.codes_kernels import multiply_pairs_by_codes
from serve_app.engine.cuda.launch import GATED_AT_ONCE, HEADS_AT_ONCE
from serve_app.engine.cuda.states import kernels as state_kernels
from serve_app.engine.cuda.states import launch as state_launch
from serve_app.engine.weights import codes_kernels
from serve_app.engine.weights import triton_kernels as weight_kernels
from serve_app.engine.weights.codes_product import APART, decoding, tile_of
from serve_app.engine.weights.decoding import STEP, Form

POINTERS = {
    **dict.fromkeys(("tables", "query_start", "context_lens", "tiles", "decodes", "count"), "*i32"),
    **dict.fromkeys(("parts", "lens", "pairs"), "*i32"),
    **dict.fromkeys(("tops", "totals", "partial"), "*fp32"),
    **dict.fromkeys(("width", "window", "splits", "D", "most_parts", "outputs", "rows"), "i32"),
    **dict.fromkeys(("scale", "softcap", "eps", "eps_after", "eps_before"), "fp32"),
    **dict.fromkeys(("key_scales", "value_scales", "hidden"), "*fp32"),
    **dict.fromkeys(("ranks", "order"), "*i32"),
    **dict.fromkeys(
        ("residual", "weight", "after", "before", "cos", "sin", "query_norm", "key_norm"), "*fp32"
    ),
    **dict.fromkeys(("words", "done"), "*i32"),
    "zeros": "*i8",
    "scales": "*fp32",
    **dict.fromkeys(("slots", "chosen", "spans", "owners"), "*i64"),
    **dict.fromkeys(("total", "all_columns", "of_expert", "of_column", "of_input", "columns"), "i32"),
    **dict.fromkeys(("limit", "alpha", "added"), "fp32"),
}


EARLY = {"EARLY": True}
ALIGNED = [["tt.divisibility", 16]]
CODING = (writing.write_codes, layer_kernels.rope_and_cache)
NAMES = {False: "", True: "/codes", "fp8": "/codes/fp8"}  # of kernels, by their cache
ITEMSIZES = {"bf16": 2, "fp16": 2, "fp32": 4}
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def compiled(
    kernel: Any,
    target: GPUTarget,
    dtype: str,
    constants: dict[str, Any],
    tile: Tile | None = None,
    launch: dict[str, int] | None = None,
) -> str:
    """Bytes of shared memory of a program, and of the stack of a thread. `launch`: options without a tile."""
    names = kernel.arg_names
    codes = constants.get("CODES", False)
    pool = {False: f"*{dtype}", True: "*i8", "fp8": "*u8"}[codes]
    constants = constants | {"CODES": bool(codes)}
    if tile is not None:
        constants = constants | {"M": tile.rows, "N": tile.keys}
    chosen = {name: value for name, value in (constants | EARLY).items() if name in names}
    pointers = POINTERS | dict.fromkeys(("keys", "values"), pool)
    signature = {name: "constexpr" if name in chosen else pointers.get(name, f"*{dtype}") for name in names}
    places = {(names.index(name),): value for name, value in chosen.items()}
    aligned = {(place,): ALIGNED for place, name in enumerate(names) if signature[name].startswith("*")}
    source = ASTSource(kernel, signature=signature, constexprs=places, attrs=aligned)
    options = {
        **(tile.options if tile is not None else launch or {}),
        **(ROUNDED if kernel in CODING else {}),
    }
    options |= {"launch_pdl": True} if "EARLY" in chosen else {}
    made = triton.compile(source, target=target, options=options)
    return f"{made.metadata.shared} {stack(made.asm['cubin'])}"


def stack(program: bytes) -> int:
    """Bytes of the stack of a thread."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(program)
        file.flush()
        command = [str(tool), "-res-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sum(map(int, re.findall(r"STACK:(\d+)", said)))


def main(level: str, dtype: str, options: str, *sizes: str) -> None:
    heads, kv_heads, key_dim, value_dim = map(int, sizes)
    latent = options == "latent"
    first_pad, value_pad, rest_pad = pads(key_dim, value_dim, latent=latent)
    key_pad, width = power_of_two(key_dim), max(first_pad, value_pad)
    groups = groups_of(heads, kv_heads, width)
    group_pad = power_of_two(heads // groups)
    constants = {
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "GROUPS": groups,
        "GROUP_PAD": group_pad,
        "AT_ONCE": JOINED,
        "BLOCK_SIZE": 32,
        "KEY_DIM": key_dim,
        "VALUE_DIM": value_dim,
        "KEY_PAD": first_pad,
        "REST_PAD": rest_pad,
        "LATENT": latent,
        "VALUE_PAD": value_pad,
        "HEADS_PAD": power_of_two(kv_heads),
        "KEY_SIZE": kv_heads * key_dim,
        "VALUE_SIZE": kv_heads * value_dim,
        "PART": PART,
        "STEP": WRITTEN,
        **dict.fromkeys(("WINDOW", "SOFTCAP", "SINKS"), options == "all"),
    }
    target = GPUTarget("cuda", int(level.removeprefix("sm_")), 32)
    itemsize = ITEMSIZES[dtype]
    kinds = (
        (False, ("write_rows", "decode_parts", "decode_join", "prompts")),
        (True, ("write_codes", "decode_parts", "prompts")),
        ("fp8", ("write_codes", "decode_parts", "prompts")),
    )
    for codes, names in kinds[:1] if latent else kinds:
        tiles = {
            "prompts": tile_of_prompts(group_pad, width, itemsize, codes=bool(codes), shared=LARGE_SHARED),
            "decode_parts": tile_of_decodes(
                group_pad, width, itemsize, codes=bool(codes), shared=LARGE_SHARED
            ),
        }
        for name in names:
            kernel = getattr(writing if name.startswith("write") else kernels, name)
            taken = compiled(kernel, target, dtype, constants | {"CODES": codes}, tiles.get(name))
            print(name + NAMES[codes], taken, flush=True)
    if latent:  # which the other kernels do not know
        return
    constants = {
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "HALF": key_dim // 2,
        "HALF_PAD": key_pad // 2,
        "AT_ONCE": HEADS_AT_ONCE,
        "SIZE": heads * key_dim,
        "PAD": 1 << (heads * key_dim - 1).bit_length(),
        "STEP": GATED_AT_ONCE,
        "WIDTH": (heads + 2 * kv_heads) * key_dim,
        "FIRST": 0,
        **dict.fromkeys(("DELTA", "AFTER", "BEFORE", "CENTRED", "GELU", "NORMS"), True),
    }
    for name, codes in (
        ("add_norm", False),
        ("normalise_part", False),
        ("gated", False),
        ("rope_and_cache", False),
        ("rope_and_cache", True),
        ("rope_and_cache", "fp8"),
    ):
        taken = compiled(getattr(layer_kernels, name), target, dtype, {**constants, "CODES": codes})
        print(name + NAMES[codes], taken, flush=True)
    taken = compiled(
        weight_kernels.multiply_row,
        target,
        dtype,
        {"K": heads * key_dim, "ROWS": 2, "STEP": 1024, "WHOLE": False, "BIAS": True},
    )
    print("multiply_row", taken, flush=True)
    for form, rows in ((Form.INT4, 1), (Form.FP8, 64), (Form.INT8, 1000), (Form.FP4, 1000)):
        size, outputs, options_of_codes = tile_of(rows, TYPES[dtype])
        constants = {
            "K": heads * key_dim,
            "STEP": STEP,
            "STEPS": -(-heads * key_dim // STEP),
            "PARTS": 2,
            "APART": rows <= APART,
            "GROUP": 32 if form.bits == 4 else 0,
            "ZEROS": form is Form.INT4,
            "WHOLE": False,
            "BIAS": True,
            "M": size,
            "N": outputs,
            **decoding(form, TYPES[dtype]),
        }
        taken = compiled(codes_kernels.multiply_codes, target, dtype, constants, launch=options_of_codes)
        print(f"multiply_codes/{form.name}/{size}", taken, flush=True)
    taken = compiled(
        dividing.divide, target, dtype, {"SIZE": 256, "AT_ONCE": PARTS, "PART": PART, "PAIRS": True}
    )
    print("divide", taken, flush=True)
    for size in (expert_tiles.FEW, expert_tiles.MANY):
        sizes_of_pairs = {
            "EXPERTS": 128,
            "BY_PAIR": size == expert_tiles.FEW,
            "AT_ONCE": expert_tiles.SORTED,
            "INPUTS": heads * key_dim,
            "OUTPUTS": heads * key_dim,
            "SHARE": 8,
            "GATE": 3,
            "APART": 2,
            "UP": 1,
            **dict.fromkeys(("BIAS", "SCALED"), True),
            "M": size,
            "N": expert_tiles.COLUMNS,
            "STEP": expert_tiles.BYTES // ITEMSIZES[dtype],
            "K": 8,
            "SIZE": heads * key_dim,
        }
        for form in (Form.FP4, Form.INT8):
            of_codes = {
                "STEP": STEP,
                "STEPS": -(-heads * key_dim // STEP),
                "K": heads * key_dim,
                "GROUP": 32 if form is Form.FP4 else 0,
                "ZEROS": False,
                "WHOLE": True,
                **decoding(form, TYPES[dtype]),
            }
            launch = {"num_warps": 4, "num_stages": 3}
            taken = compiled(multiply_pairs_by_codes, target, dtype, sizes_of_pairs | of_codes, launch=launch)
            print(f"multiply_pairs_by_codes/{form.name}/{size}", taken, flush=True)
        for name in ("sort_pairs", "multiply_pairs", "add_pairs"):
            of_add = {"STEP": expert_tiles.ADDED} if name == "add_pairs" else {}
            taken = compiled(getattr(expert_kernels, name), target, dtype, sizes_of_pairs | of_add)
            print(f"{name}/{size}", taken, flush=True)
    constants = {
        "CHANNELS": heads * key_dim,
        "PAST": 3,
        "TOKENS": state_launch.TOKENS,
        "HEADS": heads,
        "SHARE": 2,
        "K": key_dim,
        "V": value_dim,
        "K_PAD": key_pad,
        "DECAYS": 1,
        "N": 16,
        "N_PAD": 16,
        **dict.fromkeys(("BIAS", "SILU", "PARTS"), True),
    }
    for name, at_once, numbers in (
        ("convolve", state_launch.CHANNELS, dtype),
        ("recur", state_launch.COLUMNS, "fp32"),
        ("scan_channels", state_launch.SCANNED, "fp32"),
    ):
        kernel, sized = getattr(state_kernels, name), constants | {"AT_ONCE": at_once}
        print(name, compiled(kernel, target, numbers, sized), flush=True)
    constants = {
        "K": heads * key_dim,
        "N": heads * key_dim + kv_heads * (key_dim + value_dim),
        "FIRST": heads * key_dim,
        "SECOND": kv_heads * key_dim,
        "MODULES": 3,
        "RANK": 64,
        "RANKS": RANKS,
        "STEP": INPUTS,
        "OUTPUTS": OUTPUTS,
    }
    for size, name in product((FEW, MANY), ("shrink", "expand")):
        taken = compiled(getattr(adapter_kernels, name), target, dtype, {**constants, "TILE": size})
        print(f"{name}/{size}", taken, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
