"""Room for new replicas: what cannot come up is refused, and nothing else."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from serve_app.control.endpoints.cluster import NodeRoom, Room
from serve_app.control.endpoints.room import check_room
from serve_app.control.endpoints.state import AppSpec
from serve_app.errors import InvalidField

GIB = 2**30
MUCH = {"CPU": 64.0, "GPU": 8.0}


def spec(replicas: int = 1, *, name: str = "app", gpus: float = 0.0, share: float | None = None) -> AppSpec:
    model = {"name": "big", "source": "/models/big", "engine": {"gpu_share": share}}
    return AppSpec(
        name=name, model=model, num_cpus=1.0, num_gpus=gpus, min_replicas=replicas, max_replicas=replicas
    )


def check(
    *specs: AppSpec, nodes: tuple[NodeRoom, ...] = (), least: int | None = 4 * GIB, running: int = 0
) -> None:
    before = {"app": spec(running)} if running else {}
    check_room(specs, before, Room(MUCH, nodes), lambda config: least, "served_entities")


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_replicas_spread_over_nodes(replicas: int) -> None:
    check(spec(replicas), nodes=(NodeRoom(9 * GIB), NodeRoom(5 * GIB)))
    with pytest.raises(InvalidField, match=r"served_entities: a replica of 'big' needs at least 4\.0 GiB"):
        check(spec(replicas), nodes=(NodeRoom(4 * replicas * GIB - 1),))


def test_what_nobody_knows_is_let_through() -> None:
    check(spec(), nodes=())
    check(spec(), nodes=(NodeRoom(0),), least=None)
    check(spec(gpus=1), nodes=(NodeRoom(0),))  # the GPUs of another maker


def test_replicas_that_run_need_no_more() -> None:
    check(spec(2), nodes=(NodeRoom(0),), running=2)
    check(spec(1), nodes=(NodeRoom(0),), running=2)
    with pytest.raises(
        InvalidField, match="1 of them are to start, and the node with the most has free 0 MiB"
    ):
        check(spec(3), nodes=(NodeRoom(0),), running=2)


@pytest.mark.parametrize(
    ("gpus", "share", "fits", "words"),
    [
        (1.0, None, 4 * GIB, "the GPU with the most has 3.9 GiB"),
        (0.5, None, 8 * GIB, "the GPU with the most leaves it 0.5 of its memory, which is 3.9 GiB"),
        (0.5, 0.25, 16 * GIB, "the GPU with the most leaves it 0.25 of its memory, which is 3.9 GiB"),
    ],
)
def test_on_a_gpu_its_own_memory_counts(gpus: float, share: float | None, fits: int, words: str) -> None:
    check(spec(gpus=gpus, share=share), nodes=(NodeRoom(0, (fits,)),))
    with pytest.raises(InvalidField, match=re.escape(words)):
        check(spec(gpus=gpus, share=share), nodes=(NodeRoom(64 * GIB, (int(fits * 0.98),)),))


def test_each_rank_of_a_replica_has_a_gpu_for_its_part() -> None:
    divided = replace(spec(gpus=2.0), model={**spec().model, "tensor_parallel": 2})
    check(divided, nodes=(NodeRoom(0, (2 * GIB, 2 * GIB)),))
    with pytest.raises(InvalidField, match=r"needs at least 4\.0 GiB of memory"):
        check(divided, nodes=(NodeRoom(0, (2 * GIB - 1, 2 * GIB - 1)),))


def test_the_gpus_of_one_process_are_on_one_node() -> None:
    divided = replace(spec(gpus=2.0), model={**spec().model, "tensor_parallel": 2})
    nodes = (NodeRoom(0, (2 * GIB,)), NodeRoom(0, (2 * GIB,)))
    with pytest.raises(InvalidField, match=r"needs 2 GPUs on one node, .* most has 1; .*_group_bundles"):
        check(divided, nodes=nodes)
    bundle = {"CPU": 1.0, "GPU": 1.0}
    check(replace(divided, num_gpus=1.0, bundles=(bundle, bundle)), nodes=nodes)


def test_all_bundles_of_a_replica_count() -> None:
    spread = replace(spec(gpus=1.0), bundles=({"CPU": 1.0, "GPU": 1.0},) * 9)
    with pytest.raises(InvalidField, match="need 9 GPUs and 8 are free"):
        check(spread)


@pytest.mark.parametrize("kind", ["CPU", "GPU"])
def test_units_are_counted_together(kind: str) -> None:
    room = Room({**MUCH, kind: 1.0})
    with pytest.raises(InvalidField, match=f"need 2 {kind}s and 1 are free"):
        check_room(
            [spec(name="a", gpus=1.0), spec(name="b", gpus=1.0)],
            {},
            room,
            lambda config: None,
            "served_entities",
        )
