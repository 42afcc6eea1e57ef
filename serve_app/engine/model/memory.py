"""Decides how large the KV cache and how long a sequence may be, from numbers alone.

`plan_cache` is pure. Only `free_memory` looks at the machine. On a GPU, it looks at the replica's part, to
which `keep_to_share` limits torch. Nothing is allocated.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import psutil
import torch

from serve_app.config import EngineConfig
from serve_app.engine.attention import LayerSpec
from serve_app.engine.cache.slots import STEP_SLOTS
from serve_app.engine.state import StateSpec
from serve_app.engine.state.pools import OWN_SLOTS

CPU_SHARE: Final = 0.3  # of free memory: a laptop has other work to do
CPU_CACHE_CAP: Final = 8 * 2**30  # bytes; more is for the operator to ask for
CUDA_SHARE: Final = 0.92  # of a GPU, or of a replica's part; the rest is for adapters' work, gaps and CUDA
CUDA_OWN_BYTES: Final = 768 * 2**20  # of CUDA in a process: its context, kernels and libraries
STATE_SHARE: Final = 0.5  # of the cache, at most, for states
KEPT_SLOTS: Final = 2  # for each sequence of a full batch, for the states of known prefixes


class Agreement(Protocol):
    """What the ranks of a model agree on. All of them make the same calls, in the same order."""

    def share(self, free_bytes: int) -> int:
        """The bytes for which this rank may plan, by its free ones."""
        ...

    def smallest(self, number: int) -> int:
        """The smallest of all ranks' numbers."""
        ...


class Alone:
    """The `Agreement` of a process that has a model of its own."""

    def share(self, free_bytes: int) -> int:
        return free_bytes

    def smallest(self, number: int) -> int:
        return number


ALONE: Final = Alone()


class CacheTooSmall(ValueError):
    """The cache cannot be as large as the settings require; the message says which setting to change."""


@dataclass(frozen=True, slots=True)
class CachePlan:
    """The size of the KV cache and the context window that fits it."""

    num_blocks: int
    block_size: int  # tokens
    max_model_len: int  # tokens of one sequence, prompt and output
    block_bytes: int  # of one block in all layers
    max_sequences: int  # in one batch
    num_slots: int = 0  # for states, each of one sequence at one position
    slot_bytes: int = 0
    lowered_from: int | None = None  # the window asked for, when the cache cannot hold it

    @property
    def cache_bytes(self) -> int:
        return self.num_blocks * self.block_bytes + self.state_bytes

    @property
    def state_bytes(self) -> int:
        return (self.num_slots + OWN_SLOTS) * self.slot_bytes


def plan_cache(
    layers: tuple[LayerSpec, ...],
    states: tuple[StateSpec, ...] = (),
    *,
    dtype: torch.dtype,
    config: EngineConfig,
    context_window: int,
    free_bytes: int,
    share: float,
    cap: int | None = None,
    agreement: Agreement = ALONE,
) -> CachePlan:
    """Choose the number of blocks, the number of slots for states, and the window.

    The cache has `config.num_blocks` blocks, or `config.kv_cache_bytes` bytes, or else `share` of
    `free_bytes`, limited to `cap` and to what `max_sequences` full windows fill. The model's own window is
    lowered to what fits in the blocks. A `config.max_model_len` that does not fit raises CacheTooSmall
    instead. States take at most STATE_SHARE of the memory; if that is too little for `config.max_sequences`,
    fewer sequences run at once. `agreement`: all ranks have as many blocks and slots as the one with room for
    the fewest; a rank may have states although another one has none.
    """
    if config.max_model_len is not None and config.max_model_len > context_window:
        raise CacheTooSmall(
            f"max_model_len {config.max_model_len} is beyond the model's own context window of "
            f"{context_window} tokens; lower it"
        )
    window = config.max_model_len or context_window
    block_bytes = config.block_size * sum(spec.bytes_per_token(dtype) for spec in layers)
    blocks_per_window = -(-window // config.block_size)
    given = int(free_bytes * share) if cap is None else min(int(free_bytes * share), cap)
    given = given if config.kv_cache_bytes is None else config.kv_cache_bytes
    slot_bytes = sum(state.num_bytes for state in states)
    has_states = agreement.smallest(-len(states)) < 0  # here, or in another rank
    num_slots = _slots(slot_bytes, int(given * STATE_SHARE), config.max_sequences) if has_states else 0
    num_slots = agreement.smallest(num_slots)
    max_sequences = min(config.max_sequences, num_slots // STEP_SLOTS) if num_slots else config.max_sequences
    # One block a sequence above its window: a fork copies before it releases.
    enough = config.max_sequences * (blocks_per_window + 1)
    if config.num_blocks is not None:
        num_blocks = config.num_blocks
    elif not block_bytes:
        num_blocks = enough
    else:
        fitting = (given - (num_slots + OWN_SLOTS) * slot_bytes) // block_bytes
        num_blocks = fitting if config.kv_cache_bytes is not None else min(fitting, enough)
    num_blocks = agreement.smallest(num_blocks)
    capacity = num_blocks * config.block_size
    if num_blocks < 2:
        raise CacheTooSmall(
            f"one block of the KV cache takes {block_bytes:,} bytes and fewer than two fit; "
            "free some memory, raise kv_cache_bytes or lower block_size"
        )
    if capacity < window and config.max_model_len is not None:
        raise CacheTooSmall(
            f"the KV cache holds {capacity} tokens, max_model_len asks for {window}; "
            "lower max_model_len or raise kv_cache_bytes"
        )
    return CachePlan(
        num_blocks=num_blocks,
        block_size=config.block_size,
        max_model_len=min(window, capacity),
        block_bytes=block_bytes,
        max_sequences=max_sequences,
        num_slots=num_slots,
        slot_bytes=slot_bytes,
        lowered_from=window if capacity < window else None,
    )


def _slots(slot_bytes: int, given: int, max_sequences: int) -> int:
    """The number of slots of `slot_bytes` each that fit in `given` bytes, but no more than a full batch and
    cached prefixes can use: as many, if a slot takes none."""
    most = max_sequences * (STEP_SLOTS + KEPT_SLOTS)
    if not slot_bytes:
        return most
    fitting = given // slot_bytes - OWN_SLOTS
    if fitting < STEP_SLOTS:
        raise CacheTooSmall(
            f"the states of one sequence take {slot_bytes:,} bytes, and {STATE_SHARE:.0%} of the cache hold "
            f"fewer than the {STEP_SLOTS + OWN_SLOTS} that it needs; free some memory or raise kv_cache_bytes"
        )
    return min(fitting, most)


def plan_for_device(
    layers: tuple[LayerSpec, ...],
    states: tuple[StateSpec, ...] = (),
    *,
    dtype: torch.dtype,
    device: torch.device,
    config: EngineConfig,
    context_window: int,
    step_bytes: int = 0,
    adapter_bytes: int = 0,
    agreement: Agreement = ALONE,
) -> CachePlan:
    """`plan_cache` with the share and the free memory of `device`, on which the weights are already loaded.

    On a GPU, which cannot swap, `step_bytes` are kept free for the largest steps, and `adapter_bytes` for the
    adapters that may be loaded while serving. `agreement`: with the other ranks of the model.
    """
    on_cpu = device.type == "cpu"
    free = free_memory(device, config.gpu_share)
    if not free and config.gpu_share is not None:
        raise CacheTooSmall(
            f"the weights fill the part {config.gpu_share:g} of the GPU that this replica has; raise "
            "`num_gpus` (or gpu_share), or choose a smaller model or dtype"
        )
    beside = step_bytes + adapter_bytes
    if step_bytes and free <= beside:
        raise CacheTooSmall(
            f"a step takes {step_bytes:,} bytes and the adapters {adapter_bytes:,}, and the weights leave "
            f"{free:,} of the GPU; lower max_step_tokens, max_sequences or max_adapters"
        )
    return plan_cache(
        layers,
        states,
        dtype=dtype,
        config=config,
        context_window=context_window,
        free_bytes=agreement.share(max(free - beside, 0)),
        share=CPU_SHARE if on_cpu else 1.0,
        cap=CPU_CACHE_CAP if on_cpu else None,
        agreement=agreement,
    )


def keep_to_share(gpu_share: float | None) -> None:
    """Limit torch to this part of the GPU, so that the rest stays free for other replicas."""
    if gpu_share is not None and torch.cuda.is_available():
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(max(gpu_share - CUDA_OWN_BYTES / total, 0.0))


def free_memory(device: torch.device, gpu_share: float | None = None) -> int:
    """Bytes that may still be allocated on `device`; on a CPU, at most what the container still allows.

    On a GPU, only the fraction CUDA_SHARE of the free memory counts. With `gpu_share`, the limit is that part
    of the GPU, less what this process has already allocated.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        part = total if gpu_share is None else int(total * gpu_share)
        if gpu_share is not None:
            free = min(free, part - torch.cuda.memory_reserved(device) - CUDA_OWN_BYTES)
        return max(free - int(part * (1 - CUDA_SHARE)), 0)
    available = int(psutil.virtual_memory().available)
    left = cgroup_free()
    return available if left is None else min(available, left)


def cgroup_free(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """The free bytes under the memory limit of our control group (v2 or v1); None without a limit."""
    for limit_file, usage_file in (
        (root / "memory.max", root / "memory.current"),
        (root / "memory" / "memory.limit_in_bytes", root / "memory" / "memory.usage_in_bytes"),
    ):
        try:
            limit, usage = limit_file.read_text().strip(), usage_file.read_text().strip()
        except OSError:
            continue
        if limit.isdigit() and int(limit) < 2**60:  # v1 writes a huge number for "none", v2 the word max
            return max(int(limit) - int(usage), 0)
    return None
