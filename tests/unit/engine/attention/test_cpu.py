"""CPU attention equals the reference, natively and in plain torch; a row depends on its sequence alone.

All of it with a cache of the model's type, and with one of codes.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch

from serve_app.engine.attention import AttentionBackend, LayerSpec
from serve_app.engine.attention.cpu import CpuAttention
from serve_app.engine.attention.reference import ReferenceAttention
from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.kernels import SWITCH, native
from serve_app.engine.kernels.structs import Product

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
OPTIONS = [
    {},
    {"window": 7},
    {"window": 40},
    {"softcap": 3.0},
    {"sinks": True},
    {"window": 20, "softcap": 5.0, "sinks": True},
]


@pytest.fixture(params=["on", "off"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "off":
        monkeypatch.setenv(SWITCH, "off")
    elif native() is None:
        pytest.skip("no native kernels on this machine")
    return str(request.param)


class Cached(NamedTuple):
    """The type of keys and values, and whether the cache keeps codes of them."""

    dtype: torch.dtype
    codes: bool

    @property
    def kind(self) -> torch.dtype | None:
        return torch.int8 if self.codes else None

    @property
    def tolerance(self) -> dict[str, float]:
        return dict.fromkeys(("atol", "rtol"), TOLERANCE[self.dtype])


FLOATS = Cached(torch.float32, codes=False)
PRODUCTS = (Product.FLOATS, Product.WIDENED, Product.PAIRS, Product.TILES)


@pytest.fixture(
    params=itertools.product(PRODUCTS, (False, True)),
    ids=lambda param: param[0].name.lower() + "-codes" * param[1],
)
def cached(kernels: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Cached:
    """A cache that is multiplied that way, the only one left to the kernels, if there are any."""
    library = native()
    product, codes = request.param
    if library is None and product in (Product.FLOATS, Product.WIDENED):
        return Cached(torch.float32 if product is Product.FLOATS else torch.bfloat16, codes)
    if library is None:
        pytest.skip("only for native kernels")
    for dtype, products in library.products.items():
        if product in products:
            monkeypatch.setattr(library, "products", library.products | {dtype: (product,)})
            return Cached(dtype, codes)
    pytest.skip("not on this processor")


def context(spans: list[tuple[int, int]], tables: list[list[int]], size: int) -> ForwardContext:
    """Sequence i computes positions spans[i][0] .. spans[i][1]-1 and has the blocks tables[i]."""
    width = max(map(len, tables))
    starts = [0]
    slots: list[int] = []
    for (begin, end), table in zip(spans, tables, strict=True):
        starts.append(starts[-1] + end - begin)
        slots += [table[p // size] * size + p % size for p in range(begin, end)]
    return ForwardContext(
        query_start=torch.tensor(starts, dtype=torch.int32),
        context_lens=torch.tensor([end for _, end in spans], dtype=torch.int32),
        block_tables=torch.tensor([t + [0] * (width - len(t)) for t in tables], dtype=torch.int32),
        slots=torch.tensor(slots),
        query_lens=tuple(end - begin for begin, end in spans),
        lens=tuple(end for _, end in spans),
        block_size=size,
    )


class Sequences:
    """Random queries, keys and values of some sequences with scattered blocks."""

    def __init__(
        self,
        lengths: list[int],
        *,
        heads: int = 6,
        kv_heads: int = 2,
        dims: tuple[int, int] = (32, 32),
        size: int = 16,
        cached: Cached = FLOATS,
        latent: bool = False,
    ) -> None:
        random = torch.Generator().manual_seed(1)
        self.size, self.cached, self.heads = size, cached, heads
        self.spec = LayerSpec(kv_heads, *dims, latent=latent)
        used = [-(-length // size) for length in lengths]
        order = (torch.randperm(sum(used), generator=random) + 1).tolist()
        self.blocks = sum(used) + 1
        self.tables = [[order.pop() for _ in range(n)] for n in used]

        def tensors(heads: int, dim: int) -> list[torch.Tensor]:
            return [torch.randn(n, heads, dim, generator=random).to(cached.dtype) for n in lengths]

        self.query, self.key = tensors(heads, dims[0]), tensors(kv_heads, dims[0])
        self.value = [key[..., : dims[1]] for key in self.key] if latent else tensors(kv_heads, dims[1])
        self.sinks = torch.randn(heads, generator=random)

    def cache(self, backend: AttentionBackend) -> AttentionBackend:
        """The backend with an empty cache. The reference always keeps values."""
        dtype, codes = self.cached.dtype, self.cached.kind
        spec = replace(self.spec, latent=False) if isinstance(backend, ReferenceAttention) else self.spec
        backend.allocate((spec,), self.blocks, self.size, dtype, CPU, codes=codes)
        return backend

    def run(
        self, backend: AttentionBackend, spans: dict[int, tuple[int, int]], **options: object
    ) -> dict[int, torch.Tensor]:
        """Compute the span of each named sequence in one batch."""
        if options.pop("sinks", None):
            options["sinks"] = self.sinks
        names = list(spans)
        q, k, v = (
            torch.cat([rows[i][slice(*spans[i])] for i in names])
            for rows in (self.query, self.key, self.value)
        )
        if self.spec.latent and not isinstance(backend, ReferenceAttention):
            options["latent"] = True
        step = context([spans[i] for i in names], [self.tables[i] for i in names], self.size)
        out = backend.forward(0, q, k, v, step, scale=self.spec.key_dim**-0.5, **options)  # type: ignore[arg-type]
        return dict(zip(names, out.split(list(step.query_lens)), strict=True))


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "+".join(o) or "plain")
def test_a_mixed_batch_equals_the_reference(kernels: str, options: dict[str, object], cached: Cached) -> None:
    sequences = Sequences([70, 33, 50, 1], cached=cached)
    backends = [sequences.cache(backend) for backend in (CpuAttention(), ReferenceAttention())]
    past = {0: (0, 30), 1: (0, 32), 2: (0, 49)}
    step = {0: (30, 70), 1: (32, 33), 2: (49, 50), 3: (0, 1)}
    for spans in (past, step):
        got, want = (sequences.run(backend, spans, **options) for backend in backends)
        for name in spans:
            torch.testing.assert_close(got[name], want[name], **cached.tolerance)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dims", "size"),
    [
        (4, 4, (24, 24), 16),
        (9, 3, (64, 64), 32),
        (8, 1, (128, 128), 64),
        (4, 4, (48, 20), 32),
        (3, 3, (96, 40), 128),
        (2, 1, (8, 8), 5),
        (4, 2, (80, 80), 32),
        (4, 2, (256, 256), 16),
    ],
)
def test_every_shape_equals_the_reference(
    kernels: str, heads: int, kv_heads: int, dims: tuple[int, int], size: int, cached: Cached
) -> None:
    sequences = Sequences([41, 90], heads=heads, kv_heads=kv_heads, dims=dims, size=size, cached=cached)
    spans = {0: (0, 41), 1: (0, 90)}
    got, want = (sequences.run(sequences.cache(b), spans) for b in (CpuAttention(), ReferenceAttention()))
    for name in spans:
        torch.testing.assert_close(got[name], want[name], **cached.tolerance)


@pytest.mark.parametrize("options", [{}, {"window": 700}], ids=["full", "window"])
def test_a_row_is_the_same_bit_for_bit_in_any_chunk_batch_and_number_of_threads(
    options: dict[str, object], kernels: str, cached: Cached
) -> None:
    if kernels == "off":
        pytest.skip("plain torch may round differently")
    sequences = Sequences([2100, 300, 37], heads=4, cached=cached)  # more than two parts of 1024 keys
    whole = sequences.run(sequences.cache(CpuAttention()), {0: (0, 2100)}, **options)[0]
    backend = sequences.cache(CpuAttention())
    chunks = [
        sequences.run(backend, {1: (0, 299), 0: (0, 900)}, **options)[0],
        sequences.run(backend, {0: (900, 2099), 2: (0, 37)}, **options)[0],
        sequences.run(backend, {1: (299, 300), 0: (2099, 2100)}, **options)[0],
    ]
    assert torch.equal(whole, torch.cat(chunks))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)  # alone and long: its parts are shared between threads
        again = sequences.run(backend, {0: (2099, 2100)}, **options)[0]
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(again, whole[2099:])


@pytest.mark.parametrize("options", [{}, {"window": 21}], ids=["full", "window"])
@pytest.mark.parametrize(
    ("heads", "dims", "size"),
    [(2, (32, 32), 16), (6, (64, 64), 32), (10, (64, 48), 16), (16, (128, 80), 64)],
    ids=["1 row", "3 rows", "5 rows", "8 rows"],
)
def test_decoding_gives_the_bits_of_a_prefill_for_any_number_of_rows(
    heads: int,
    dims: tuple[int, int],
    size: int,
    options: dict[str, object],
    kernels: str,
    cached: Cached,
) -> None:
    """A decode has one row for each query head of a group and has a path of its own where there are tiles."""
    if kernels == "off":
        pytest.skip("plain torch may round differently")
    sequences = Sequences([150, 150], heads=heads, dims=dims, size=size, cached=cached)
    whole = sequences.run(sequences.cache(CpuAttention()), {0: (0, 150)}, **options)[0]
    backend = sequences.cache(CpuAttention())
    sequences.run(backend, {0: (0, 1), 1: (0, 149)}, **options)
    steps = [sequences.run(backend, {0: (at, at + 1), 1: (149, 150)}, **options)[0] for at in range(1, 150)]
    assert torch.equal(torch.cat(steps), whole[1:])


SHARED = {  # sequence: (the one whose first blocks it has, tokens in them)
    1: (0, 1280),
    2: (0, 1152),
    3: (0, 512),
    4: (2, 1400),
    5: (0, 128),
    7: (6, 256),
    8: (0, 2048),
}


@pytest.mark.parametrize("options", [{}, {"softcap": 3.0, "sinks": True}, {"window": 700}], ids=str)
@pytest.mark.parametrize(("heads", "size"), [(8, 16), (6, 128), (10, 64)])
def test_decodes_that_share_keys_have_the_bits_of_one_alone(
    heads: int, size: int, options: dict[str, object], kernels: str, cached: Cached
) -> None:
    """Some share more than a part of keys, some less, and some share it with a few of the others only."""
    if kernels == "off":
        pytest.skip("plain torch may round differently")
    lengths = [2300, 1300, 1440, 700, 1500, 131, 300, 290, 2049, 40]
    sequences = Sequences(lengths, heads=heads, dims=(64, 48), size=size, cached=cached)
    backend = sequences.cache(CpuAttention())
    for name in range(len(lengths)):
        source, tokens = SHARED.get(name, (name, 0))
        blocks = tokens // size
        sequences.tables[name][:blocks] = sequences.tables[source][:blocks]
        begin = min(blocks * size, lengths[name] - 1)
        if begin < lengths[name] - 1:
            sequences.run(backend, {name: (begin, lengths[name] - 1)}, **options)
    last = {name: (length - 1, length) for name, length in enumerate(lengths)}
    alone = {name: sequences.run(backend, {name: span}, **options)[name] for name, span in last.items()}
    together = sequences.run(backend, last, **options)
    assert {name: torch.equal(together[name], alone[name]) for name in last} == dict.fromkeys(last, True)
    beside_a_prompt = sequences.run(backend, last | {9: (0, 40)}, **options)
    assert all(torch.equal(beside_a_prompt[name][-1:], alone[name]) for name in last)


def test_scores_that_rise_with_the_position_equal_the_reference_in_prefill_and_decode(
    kernels: str, cached: Cached
) -> None:
    """Sums keep their top while scores rise a little, and shrink when they rise more: both happen here."""
    sequences = Sequences([450], heads=4, dims=(64, 64), cached=cached)
    steps = torch.arange(450) // 64  # scores rise by 5 with every 64 keys, exactly in bfloat16 too
    sequences.query[0].fill_(1.0)
    sequences.key[0][:] = (steps * 5 / 8).to(cached.dtype)[:, None, None]
    backends = [sequences.cache(backend) for backend in (CpuAttention(), ReferenceAttention())]
    got, want = (sequences.run(backend, {0: (0, 450)})[0] for backend in backends)
    torch.testing.assert_close(got, want, **cached.tolerance)
    if kernels == "on":
        decodes = [sequences.run(backends[0], {0: (at, at + 1)})[0] for at in range(63, 450, 43)]
        assert torch.equal(torch.cat(decodes), got[63::43])


def test_what_lies_behind_the_end_of_a_sequence_is_never_read(kernels: str, cached: Cached) -> None:
    sequences = Sequences([40, 40], kv_heads=6, cached=cached)
    backend = sequences.cache(CpuAttention())
    sequences.tables[1] = list(sequences.tables[0])  # the same blocks, one after the other
    clean = [rows[0].clone() for rows in (sequences.key, sequences.value)]
    for rows in (sequences.key, sequences.value):
        rows[0].fill_(float("nan"))
    sequences.run(backend, {0: (0, 40)})
    assert torch.isfinite(sequences.run(backend, {1: (0, 21)})[1]).all()
    assert all(torch.isfinite(rows).all() for rows in clean)


def test_a_copied_block_holds_the_same(kernels: str, cached: Cached) -> None:
    sequences = Sequences([30], cached=cached)
    backend = sequences.cache(CpuAttention())
    sequences.run(backend, {0: (0, 30)})
    before = sequences.run(backend, {0: (29, 30)})[
        0
    ]  # of one row, as after it: plain torch sums by the shape
    last = sequences.tables[0][1]
    backend.copy_blocks([(last, 0)])
    sequences.tables[0][1] = 0
    assert torch.equal(sequences.run(backend, {0: (29, 30)})[0], before)


LATENT = [(4, (40, 32), 16), (16, (96, 64), 32), (20, (576, 512), 16), (3, (64, 64), 64)]


@pytest.mark.parametrize("options", [{}, {"window": 20, "softcap": 5.0, "sinks": True}], ids=["plain", "all"])
@pytest.mark.parametrize(("heads", "dims", "size"), LATENT)
def test_latent_values_give_what_values_of_their_own_give(
    kernels: str, heads: int, dims: tuple[int, int], size: int, options: dict[str, object], cached: Cached
) -> None:
    if cached.codes:
        pytest.skip("codes have no latent values")
    sequences = Sequences(
        [70, 33, 50], heads=heads, kv_heads=1, dims=dims, size=size, cached=cached, latent=True
    )
    backends = [sequences.cache(backend) for backend in (CpuAttention(), ReferenceAttention())]
    for spans in ({0: (0, 30), 1: (0, 32), 2: (0, 49)}, {0: (30, 70), 1: (32, 33), 2: (49, 50)}):
        got, want = (sequences.run(backend, spans, **options) for backend in backends)
        for name in spans:
            torch.testing.assert_close(got[name], want[name], **cached.tolerance)


@pytest.mark.parametrize(("heads", "dims"), [(4, (96, 64)), (16, (40, 32))])
def test_a_row_of_a_latent_layer_is_the_same_in_any_chunk_batch_and_number_of_threads(
    heads: int, dims: tuple[int, int], kernels: str, cached: Cached
) -> None:
    if kernels == "off" or cached.codes:
        pytest.skip("plain torch may round differently, and codes have no latent values")
    sequences = Sequences([1100, 300], heads=heads, kv_heads=1, dims=dims, cached=cached, latent=True)
    whole = sequences.run(sequences.cache(CpuAttention()), {0: (0, 1100)})[0]
    backend = sequences.cache(CpuAttention())
    chunks = [
        sequences.run(backend, {1: (0, 299), 0: (0, 500)})[0],
        sequences.run(backend, {0: (500, 1099)})[0],
        sequences.run(backend, {1: (299, 300), 0: (1099, 1100)})[0],
    ]
    assert torch.equal(whole, torch.cat(chunks))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        again = sequences.run(backend, {0: (1099, 1100)})[0]
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(again, whole[1099:])


def test_a_latent_cache_has_no_room_for_values_and_its_blocks_are_copied(
    kernels: str, cached: Cached
) -> None:
    if cached.codes:
        pytest.skip("codes have no latent values")
    sequences = Sequences([30, 30], heads=12, kv_heads=1, dims=(40, 32), cached=cached, latent=True)
    backend = CpuAttention()
    sequences.cache(backend)
    if kernels == "on":
        (cache,) = backend.native_caches or ()
        held = sum(piece.nbytes for piece in cache.pieces)
        assert held == sequences.blocks * 16 * sequences.spec.bytes_per_token(cached.dtype)
    sequences.key[1].fill_(float("nan"))
    sequences.tables[1] = list(sequences.tables[0])
    sequences.run(backend, {1: (0, 30)})  # what was there before is not read
    sequences.run(backend, {0: (0, 20)})
    before = sequences.run(backend, {0: (20, 21)})[0]
    assert torch.isfinite(before).all()
    backend.copy_blocks([(sequences.tables[0][1], 0)])
    sequences.tables[0][1] = 0
    assert torch.equal(sequences.run(backend, {0: (20, 21)})[0], before)
