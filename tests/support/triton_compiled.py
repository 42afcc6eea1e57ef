"""The Triton kernels compiled for a GPU, on a machine without one: types, layouts and shared memory.

    python -m tests.support.triton_compiled sm_90 bf16 HEADS KV_HEADS KEY_DIM VALUE_DIM

Prints a line for each kernel: its name, and the bytes of shared memory that a program takes. Those that know
the cache come a second time, with a cache of codes, as NAME/codes. What Triton's interpreter takes and its
compiler refuses fails here.
"""

from __future__ import annotations

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from serve_app.engine.attention.triton import kernels, writing
from serve_app.engine.attention.triton.backend import KEYS, KEYS_OF_WIDE_HEADS, LEAST, ROWS, WRITTEN
from serve_app.engine.attention.triton.plan import PART
from serve_app.engine.cuda import kernels as layer_kernels
from serve_app.engine.cuda.launch import GATED_AT_ONCE, HEADS_AT_ONCE

POINTERS = {
    **dict.fromkeys(("tables", "query_start", "context_lens", "tiles", "decodes"), "*i32"),
    **dict.fromkeys(("part_start", "owners"), "*i32"),
    **dict.fromkeys(("tops", "totals", "partial"), "*fp32"),
    **dict.fromkeys(("width", "count", "window"), "i32"),
    **dict.fromkeys(("scale", "softcap", "eps"), "fp32"),
    **dict.fromkeys(("key_scales", "value_scales"), "*fp32"),
    **dict.fromkeys(("residual", "weight", "cos", "sin", "query_norm", "key_norm"), "*fp32"),
    "slots": "*i64",
}


def compiled(kernel: Any, target: GPUTarget, dtype: str, constants: dict[str, Any]) -> int:
    """Bytes of shared memory of a program."""
    names = kernel.arg_names
    chosen = {name: value for name, value in constants.items() if name in names}
    pointers = POINTERS | (dict.fromkeys(("keys", "values"), "*i8") if constants.get("CODES") else {})
    signature = {name: "constexpr" if name in chosen else pointers.get(name, f"*{dtype}") for name in names}
    places = {(names.index(name),): value for name, value in chosen.items()}
    made = triton.compile(ASTSource(kernel, signature=signature, constexprs=places), target=target)
    return int(made.metadata.shared)


def main(level: str, dtype: str, *sizes: str) -> None:
    heads, kv_heads, key_dim, value_dim = map(int, sizes)
    key_pad, value_pad, group_pad = (
        1 << (n - 1).bit_length() for n in (key_dim, value_dim, heads // kv_heads)
    )
    constants = {
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "GROUP_PAD": group_pad,
        "BLOCK_SIZE": 32,
        "KEY_DIM": key_dim,
        "VALUE_DIM": value_dim,
        "KEY_PAD": max(LEAST, key_pad),
        "VALUE_PAD": max(LEAST, value_pad),
        "HEADS_PAD": 1 << (kv_heads - 1).bit_length(),
        "KEY_SIZE": kv_heads * key_dim,
        "VALUE_SIZE": kv_heads * value_dim,
        "N": KEYS if max(key_pad, value_pad) <= 128 else KEYS_OF_WIDE_HEADS,
        "PART": PART,
        "STEP": WRITTEN,
        **dict.fromkeys(("WINDOW", "SOFTCAP", "SINKS"), True),
    }
    target = GPUTarget("cuda", int(level.removeprefix("sm_")), 32)
    rows = {"prompts": max(ROWS, group_pad), "decode_parts": max(LEAST, group_pad)}
    for codes, names in (
        (False, ("write_rows", "decode_parts", "decode_join", "prompts")),
        (True, ("write_codes", "decode_parts", "prompts")),
    ):
        for name in names:
            more = {"M": rows.get(name), "CODES": codes}
            kernel = getattr(writing if name.startswith("write") else kernels, name)
            shared = compiled(kernel, target, dtype, {**constants, **more})
            print(name + "/codes" * codes, shared, flush=True)
    constants = {
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "HALF": key_dim // 2,
        "HALF_PAD": key_pad // 2,
        "AT_ONCE": HEADS_AT_ONCE,
        "SIZE": heads * key_dim,
        "PAD": 1 << (heads * key_dim - 1).bit_length(),
        "STEP": GATED_AT_ONCE,
        **dict.fromkeys(("DELTA", "GELU", "NORMS"), True),
    }
    for name, codes in (
        ("add_rmsnorm", False),
        ("gated", False),
        ("rope_and_cache", False),
        ("rope_and_cache", True),
    ):
        shared = compiled(getattr(layer_kernels, name), target, dtype, {**constants, "CODES": codes})
        print(name + "/codes" * codes, shared, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
