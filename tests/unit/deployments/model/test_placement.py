"""Ranks and their bundles: which rank lies where, and what no machine can have."""

from __future__ import annotations

import pytest

from serve_app.config import ModelConfig
from serve_app.deployments.model.placement import bundles_of_ranks, no_place, wrong_gpus

ONE = {"CPU": 1.0, "GPU": 1.0}
TWO = {"CPU": 4.0, "GPU": 2.0}
CPUS = {"CPU": 2.0}


@pytest.mark.parametrize(
    ("ranks", "bundles", "lie"),
    [
        (2, [ONE, ONE], [0, 1]),
        (4, [TWO, TWO], [0, 0, 1, 1]),
        (4, [{"GPU": 3.0}, ONE], [0, 0, 0, 1]),
        (4, [CPUS, CPUS], [0, 0, 1, 1]),
        (2, [CPUS, CPUS], [0, 1]),
    ],
)
def test_each_rank_has_a_gpu_or_its_share_of_the_bundles(
    ranks: int, bundles: list[dict[str, float]], lie: list[int]
) -> None:
    assert bundles_of_ranks(ranks, bundles) == lie


@pytest.mark.parametrize(
    ("ranks", "bundles", "said"),
    [
        (4, [ONE, ONE], r"have 1, 1 GPUs, and each of the 4 ranks .* takes one; write"),
        (2, [CPUS, TWO], r"have 0, 2 GPUs"),  # rank 0 is in the first
        (1, [{"GPU": 0.5}, {"GPU": 0.5}], r"have 0\.5, 0\.5 GPUs"),
        (4, [CPUS, CPUS, CPUS], r"3 bundles do not divide the 4 ranks"),
    ],
)
def test_ranks_that_do_not_fit_are_refused(ranks: int, bundles: list[dict[str, float]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        bundles_of_ranks(ranks, bundles)


def test_with_several_bundles_the_replica_itself_is_one_rank() -> None:
    config = ModelConfig(name="m", device="cuda", tensor_parallel=4)
    assert wrong_gpus(config, 1, [TWO, TWO]) is None
    assert "write `num_gpus: 1`" in str(wrong_gpus(config, 2, [TWO, TWO]))
    assert wrong_gpus(config, 0, [CPUS, CPUS]) is None
    assert "write `num_gpus: 0`" in str(wrong_gpus(config, 1, [CPUS, CPUS]))
    assert wrong_gpus(config, 4, [{"GPU": 4.0}]) is None  # processes of one machine


@pytest.mark.parametrize(
    ("gpus", "bundles", "strategy", "nodes", "said"),
    [
        (4, [], "", [4, 0], None),
        (4, [], "", [2, 2], "4 GPUs on one machine, and the machine with the most has 2; write `placement"),
        (1, [TWO, TWO], "STRICT_PACK", [2, 2], "4 GPUs on one machine"),
        (1, [TWO, TWO], "", [2, 2], None),
        (1, [TWO, TWO], "PACK", [4], None),
        (
            1,
            [TWO, TWO],
            "STRICT_SPREAD",
            [4],
            "bundles of 2, 2 GPUs (STRICT_SPREAD), and the machines have 4",
        ),
        (1, [TWO, TWO, ONE], "PACK", [2, 2], "or add a machine"),
        (1, [], "", [0], "add a machine with a GPU"),
        (0, [], "", [0], None),
        (0, [CPUS, CPUS], "STRICT_SPREAD", [0, 0], None),
    ],
)
def test_what_no_machine_has_is_said_with_the_setting(
    gpus: float, bundles: list[dict[str, float]], strategy: str, nodes: list[float], said: str | None
) -> None:
    found = no_place(gpus, bundles, strategy, nodes)
    assert found is None if said is None else said in str(found)
