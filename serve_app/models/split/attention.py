"""How attention is divided among ranks: by heads, as the names and shapes of its tensors show."""

from __future__ import annotations

from typing import Any, Final

from serve_app.models.split.share import WHOLE, NotDivided, Part

QUERIES: Final = ("q_proj", "Wq", "q_b_proj")
KEYS: Final = ("k_proj", "Wk")
VALUES: Final = ("v_proj", "Wv")
JOINED: Final = ("qkv_proj", "Wqkv", "c_attn")  # queries, keys and values side by side
MIXED: Final = ("query_key_value",)  # the same for each head
GATES: Final = ("gate_proj", "g_proj")  # of each head's output, or of each number of it
OUT: Final = ("o_proj", "out_proj", "dense", "Wo", "c_proj")
PER_HEAD: Final = ("sinks",)
NORMS: Final = ("q_norm", "k_norm")
HEADS: Final = ("num_heads", "num_attention_heads", "n_heads", "n_head")
KV_HEADS: Final = ("num_key_value_heads", "num_kv_heads", "kv_heads")
WIDTHS: Final = ("all_head_size", "split_size")


def is_attention(part: Part) -> bool:
    names = (*QUERIES, *JOINED, *MIXED)
    return any(name in part for name in names) and any(name in part for name in OUT)


def attention(part: Part) -> None:
    """Queries, keys, values and outputs by heads. Raises NotDivided."""
    out = part.first(OUT)
    width = part.features(out)[0]
    dim, value_dim = _head_dim(part), _value_dim(part)
    if not (dim or "kv_b_proj" in part) or width % value_dim:
        raise NotDivided(f"{type(part.module).__name__} does not say how large its heads are")
    heads = part.evenly(width // value_dim, "attention heads")
    numbers = width, width // part.ranks
    kv_heads = heads
    if any(name in part for name in JOINED):
        kv_heads = _joined(part, part.first(JOINED), dim, numbers)
    elif any(name in part for name in MIXED):
        name = part.first(MIXED)
        part.outputs(name, part.evenly(part.features(name)[1], "outputs"))
    elif "kv_b_proj" in part:
        part.outputs("kv_b_proj", part.evenly(part.features("kv_b_proj")[1], "outputs"))
    elif any(name in part for name in KEYS):  # a layer may also use those of another
        kv_heads = part.heads(part.features(part.first(KEYS))[1] // dim, "key-value heads")
        for name in (*KEYS, *VALUES):
            if name in part:
                each = part.features(name)[1] // kv_heads[0]
                part.outputs(name, (kv_heads[0] * each, kv_heads[1] * each))
    for name in QUERIES if "q_a_proj" not in part else ("q_b_proj",):
        if name in part:
            part.outputs(name, part.evenly(part.features(name)[1], "queries"))
    for name in GATES:
        if name in part and not part.features(name)[1] % heads[0]:
            part.outputs(name, part.evenly(part.features(name)[1], "gates"))
    for name in PER_HEAD:
        if name in part:
            part.by_heads(name, heads)
    part.inputs(out, numbers)
    part.attends = True
    _norms(part, dim, heads, kv_heads)
    part.count(heads, *HEADS)
    part.count(kv_heads, *KV_HEADS)
    part.count(numbers, *WIDTHS, *(("hidden_size",) if "Wqkv" in part else ()))
    if hasattr(part.module, "num_key_value_groups"):
        part.counts["num_key_value_groups"] = heads[1] // kv_heads[1]


def _head_dim(part: Part) -> int:
    return int(getattr(part.module, "head_dim", 0) or getattr(part.module, "head_size", 0))


def _value_dim(part: Part) -> int:
    """The numbers of a head's output."""
    if "kv_b_proj" in part or not any(name in part for name in KEYS):
        return int(getattr(part.module, "v_head_dim", 0) or _head_dim(part) or 1)
    heads = max(1, part.features(part.first(KEYS))[1] // (_head_dim(part) or 1))
    return max(1, part.features(part.first((*VALUES, *KEYS)))[1] // heads)


def _joined(part: Part, name: str, dim: int, queries: tuple[int, int]) -> tuple[int, int]:
    """Divide a linear of queries, keys and values; returns the numbers of key-value heads."""
    rest = part.features(name)[1] - queries[0]
    if getattr(part.module, "multi_query", True) is False:  # the three of each head
        part.outputs(name, part.evenly(part.features(name)[1], "outputs"))
        return queries[0] // dim, queries[1] // dim
    kv_heads = part.heads(rest // (2 * dim), "key-value heads")
    side = kv_heads[0] * dim, kv_heads[1] * dim
    part.outputs(name, queries, side, side)
    if hasattr(part.module, "multi_query"):
        part.count(queries, "embed_dim")
        part.count(side, "kv_dim")
    return kv_heads


def _norms(part: Part, dim: int, heads: tuple[int, int], kv_heads: tuple[int, int]) -> None:
    """Divide norms with weights of their own for each head, and RMSNorms of queries or keys over all heads.
    Raises NotDivided for any tensor that is not known."""
    latent = "kv_b_proj" in part or "q_b_proj" in part
    over_heads = not latent and _over_heads(part, dim)
    for path, parameter in part.module.named_parameters():
        if path in part.shares or not WHOLE.isdisjoint(path.split(".")):
            continue
        name = path.split(".")[0]
        shape = tuple(parameter.shape)
        if len(shape) == 2 and shape[1] == dim and shape[0] in (heads[0], kv_heads[0]) and "norm" in name:
            side = kv_heads if name.startswith("k") else heads
            part.numbers(path, 0, side)
            continue
        if over_heads and name in NORMS:
            side = kv_heads if name.startswith("k") else heads
            part.numbers(path, 0, (side[0] * dim, side[1] * dim))
            part.norms[name] = part.ranks
            continue
        one = len(shape) == 1 and "norm" in name and not any(each.isdigit() for each in path.split("."))
        if not one or (shape[0] > dim and not latent):
            raise NotDivided(f"{path} of {type(part.module).__name__} is for all heads together")


def _over_heads(part: Part, dim: int) -> bool:
    """Whether queries have one RMSNorm over all heads, and so do keys."""
    norms: list[Any] = [part.of(name) for name in NORMS]
    is_rms = all(hasattr(each, "variance_epsilon") and not hasattr(each, "bias") for each in norms)
    return is_rms and norms[0].weight.numel() > dim
