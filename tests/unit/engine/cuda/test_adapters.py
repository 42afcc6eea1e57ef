"""Adapters by the GPU's kernels add what plain torch adds, to their own rows alone."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import pytest
import torch
from transformers import PreTrainedModel

from serve_app.config import EngineConfig
from serve_app.engine.attention import AttentionBackend
from serve_app.engine.attention.reference import ReferenceAttention
from serve_app.engine.attention.triton.backend import TritonAttention
from serve_app.engine.batch import build_batch
from serve_app.engine.cuda.adapters import slots
from serve_app.engine.cuda.adapters.slots import SiteStack, StackedTable, TiledAdapters
from serve_app.engine.cuda.adapters.tiles import FEW, MANY, Tiles, most_tiles, tiles_of
from serve_app.engine.cuda.fused import accelerate_cuda
from serve_app.engine.model.adapter_table import MakeAdapters
from serve_app.engine.model.lora import LowRank, Site
from serve_app.engine.model.memory import CacheTooSmall
from serve_app.engine.model.packed_adapters import PackedTable
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.sequence import Chunk, Sequence
from tests.support.low_rank import random_updates
from tests.support.tiny_models import BLOCK, make_model, make_sequence, tiny_config
from tests.support.triton_interpreter import LONG, long

pytestmark = pytest.mark.usefixtures("one_thread")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
SITES = {
    "one": Site(0, 40, {"o_proj": 24}),
    "two": Site(0, 24, {"gate_proj": 130, "up_proj": 130}),
    "three": Site(0, 70, {"q_proj": 48, "k_proj": 16, "v_proj": 16}),
}
BLOCKS_EACH = 6


def random_of(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def updates_of(site: Site, seed: int, rank: int) -> list[LowRank]:
    """At every module of the site but, for odd seeds, the first of several."""
    modules = list(site.widths)[seed % 2 if len(site.widths) > 1 else 0 :]
    return [
        LowRank(
            site.layer,
            module,
            torch.randn(rank - at, site.features, generator=random_of(seed)),
            torch.randn(site.widths[module], rank - at, generator=random_of(seed + 9)),
        )
        for at, module in enumerate(modules)
    ]


def add_plainly(
    site: Site, adapters: dict[int, list[LowRank]], x: torch.Tensor, out: torch.Tensor, tiles: Tiles
) -> torch.Tensor:
    want = out.float()
    outputs = dict(site.outputs())
    for first, count, slot in tiles.bounds.tolist():
        for row in tiles.order[first : first + count].tolist():
            for part in adapters[slot]:
                a, b = (each.to(DEVICE, x.dtype).float() for each in (part.a, part.b))
                want[row, outputs[part.module]] += b @ (a @ x[row].float()).to(x.dtype).float()
    return want


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *(("one", torch.float32), ("two", torch.float16), ("three", torch.bfloat16)),
        *(
            pytest.param(name, dtype, marks=LONG)
            for at, name in enumerate(SITES)
            for number, dtype in enumerate((torch.float32, torch.float16, torch.bfloat16))
            if at != number
        ),
    ],
    ids=str,
)
def test_a_row_takes_what_its_own_adapter_adds(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "INPUTS", 16)
    monkeypatch.setattr(slots, "PART", 20)  # sums are shared among programs
    monkeypatch.setattr(slots, "OUTPUTS", 32)
    site = SITES[name]
    stack = SiteStack(site, 4, 20, dtype, DEVICE)
    adapters = {slot: updates_of(site, slot, rank) for slot, rank in enumerate((20, 3, 17))}
    for slot, parts in adapters.items():
        stack.put(slot, parts)
    stack.put(3, ())
    adapters[3] = []
    spans = [(2, [range(1, 2), range(4, 5)]), (0, [range(6, 26)]), (1, [range(3, 4)]), (3, [range(5, 6)])]
    without = [(slot, each) for slot, each in spans if slot != 0]
    for rows, size in ((spans, MANY), (without, FEW), (without, MANY)):  # with a prompt, and without
        tiles = tiles_of(rows, size, DEVICE)
        x = (torch.randn(28, site.features, generator=random_of(5)) * site.features**-0.5).to(DEVICE, dtype)
        out = torch.randn(28, site.width, generator=random_of(6)).to(DEVICE, dtype)
        want = add_plainly(site, adapters, x, out, tiles)
        untouched = out.clone()
        stack.add(x, out, tiles)
        limit = ROUNDING[dtype] * float(want.abs().max())
        torch.testing.assert_close(out.float(), want, rtol=0, atol=limit)
        others = [row for row in range(28) if row not in tiles.order.tolist()]
        assert torch.equal(out[others], untouched[others])
        assert torch.equal(out[5], untouched[5])  # an adapter that changes nothing here


def test_a_slot_forgets_the_adapter_before() -> None:
    site = SITES["three"]
    stack = SiteStack(site, 1, 20, torch.float32, DEVICE)
    stack.put(0, updates_of(site, 0, 20))
    stack.put(0, small := updates_of(site, 1, 3))
    x, tiles = torch.randn(2, site.features, device=DEVICE), tiles_of([(0, [range(2)])], MANY, DEVICE)
    out = torch.zeros(2, site.width, device=DEVICE)
    stack.add(x, out, tiles)
    want = add_plainly(site, {0: small}, x, torch.zeros_like(out), tiles)
    torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-4)
    assert not out[:, :48].any()  # the first module, which the second adapter leaves as it is


def test_tiles_hold_rows_of_one_adapter_each_and_every_row_once() -> None:
    rows = [(3, [range(row, row + 1) for row in range(0, 40, 2)]), (1, [range(5, 6)])]
    decodes = tiles_of(rows, FEW, DEVICE)
    assert decodes.bounds.tolist() == [[0, 16, 3], [16, 4, 3], [20, 1, 1]]
    assert decodes.order.tolist() == [*range(0, 40, 2), 5]
    prompts = tiles_of([(0, [range(100), range(101, 102)])], MANY, DEVICE)
    assert prompts.bounds.tolist() == [[0, 64, 0], [64, 37, 0]]


@pytest.mark.parametrize("size", [FEW, MANY])
def test_no_division_of_rows_among_adapters_makes_more_tiles_than_a_graph_has_room_for(size: int) -> None:
    for rows in (1, 2, 15, 16, 17, 64, 130):
        for adapters in (1, 2, 5):
            used = min(rows, adapters)
            few = [rows - used + 1, *[1] * (used - 1)]
            alike = [rows // used + (at < rows % used) for at in range(used)]
            for counts in (few, alike):
                spans = [(slot, [range(count)]) for slot, count in enumerate(counts)]
                assert len(tiles_of(spans, size, DEVICE).bounds) <= most_tiles(rows, size, adapters)
    assert most_tiles(1, size, 5) == 1


def test_tiles_are_small_in_steps_of_decodes_alone() -> None:
    made = runner(make_model(tiny_config("llama")).to(DEVICE), TritonAttention(), StackedTable)
    table = made.adapters
    assert isinstance(table, StackedTable)
    table.put("one", table.compile(random_updates(table.shapes, 0, 4)))
    adapted, plain = (make_sequence(str(i), list(range(3, 20)), [i]) for i in range(2))
    adapted.adapter = "one"
    sizes = []
    for rows_of_plain in (1, 5):
        found = table.of_step([Chunk(plain, 0, rows_of_plain, 0), Chunk(adapted, 8, 1, 8)])
        assert isinstance(found, TiledAdapters)
        assert found.tiles.order.tolist() == [rows_of_plain]
        sizes.append(found.tiles.size)
    assert sizes == [FEW, MANY]


def test_shapes_that_do_not_fit_are_refused() -> None:
    site = SITES["one"]
    stack = SiteStack(site, 1, 4, torch.float32, DEVICE)
    tiles = tiles_of([(0, [range(1)])], FEW, DEVICE)
    with pytest.raises(ValueError, match="a linear of"):
        stack.add(torch.zeros(1, 39, device=DEVICE), torch.zeros(1, 24, device=DEVICE), tiles)
    with pytest.raises(ValueError, match="contiguous"):
        stack.add(torch.zeros(40, 2, device=DEVICE).T, torch.zeros(2, 24, device=DEVICE), tiles)


def runner(
    model: PreTrainedModel, backend: AttentionBackend, make_adapters: MakeAdapters, adapters: int = 2
) -> ModelRunner:
    config = EngineConfig(
        block_size=BLOCK,
        num_blocks=4 * BLOCKS_EACH,
        max_model_len=24,
        max_adapters=adapters,
        max_adapter_rank=8,
    )
    return ModelRunner(
        model, backend=backend, dtype=model.dtype, device=DEVICE, config=config, make_adapters=make_adapters
    )


def steps(first: str, second: str) -> list[list[Chunk]]:
    """Prompts and decodes of rows with two adapters and of rows with none."""
    ids = torch.randint(3, 96, (4, 24), generator=random_of(4)).tolist()
    order = torch.randperm(4 * BLOCKS_EACH, generator=random_of(3)).view(4, -1).tolist()
    made: list[Sequence] = [make_sequence(str(i), ids[i], order[i]) for i in range(4)]
    a, b, c, d = made
    a.adapter, c.adapter, d.adapter = first, second, first
    return [
        [Chunk(a, 0, 9, 9), Chunk(b, 0, 5, 5), Chunk(c, 0, 7, 7)],
        [Chunk(a, 9, 1, 9), Chunk(b, 5, 1, 5), Chunk(c, 7, 1, 7), Chunk(d, 0, 6, 6)],
        [Chunk(d, 6, 1, 6), Chunk(c, 8, 1, 8), Chunk(b, 6, 1, 6), Chunk(a, 10, 1, 10)],
        [Chunk(b, 7, 1, 7)],
    ]


def logits(runner: ModelRunner, chosen: Iterable[list[Chunk]]) -> list[torch.Tensor]:
    return [runner.run(build_batch(chunks, BLOCK, DEVICE)) for chunks in chosen]


# Fused layers, and layers of transformers with hooks.
@long
@pytest.mark.parametrize("architecture", ["qwen3", "ernie4_5", "gemma2"])
def test_a_model_gives_the_logits_that_it_gives_with_packed_linears(architecture: str) -> None:
    shape = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    model = make_model(tiny_config(architecture, **shape)).to(DEVICE)
    plain = runner(copy.deepcopy(model), ReferenceAttention(), PackedTable)
    tried = runner(accelerate_cuda(model, torch.float32), TritonAttention(), StackedTable)
    for names, ranks in ((("a", "b"), (8, 2)), (("c", "b"), (1, 2))):  # the second time c has a's slot
        for each in (plain, tried):
            assert each.adapters is not None
            for seed, (name, rank) in enumerate(zip(names, ranks, strict=True)):
                each.adapters.put(
                    name, each.adapters.compile(random_updates(each.adapters.shapes, seed, rank))
                )
            assert len(each.adapters) == 2
        got, want = (logits(each, steps(*names)) for each in (tried, plain))
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
        for each in (plain, tried):
            assert each.adapters is not None
            each.adapters.drop(names[0])
            with pytest.raises(KeyError):
                logits(each, steps(*names))


def test_an_adapter_that_is_there_already_stays() -> None:
    model = make_model(tiny_config("llama", num_hidden_layers=1)).to(DEVICE)
    tried = runner(accelerate_cuda(model, torch.float32), TritonAttention(), StackedTable)
    table = tried.adapters
    assert table is not None
    held = table.num_bytes
    assert held > 0
    for _ in range(3):
        table.put("a", table.compile(random_updates(table.shapes, 0, 8)))
        assert len(table) == 1
    table.put("b", table.compile(random_updates(table.shapes, 1, 8)))
    assert table.num_bytes == held  # taken at the start, for all
    assert table.bytes_to_come == 0


def test_slots_that_do_not_fit_say_which_settings_to_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(slots, "SiteStack", full)
    model = make_model(tiny_config("llama", num_hidden_layers=1)).to(DEVICE)
    with pytest.raises(CacheTooSmall, match="lower max_adapters or max_adapter_rank"):
        runner(accelerate_cuda(model, torch.float32), TritonAttention(), StackedTable)
