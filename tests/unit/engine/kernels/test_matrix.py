"""What `make kernels-check` names exists: the command is too slow for these tests to run."""

from __future__ import annotations

from tests.support import kernels_matrix as matrix


def test_the_files_that_every_variant_runs_exist() -> None:
    paths = (*matrix.TESTS, matrix.PORTABLE.relative_to(matrix.ROOT))
    assert [path for path in paths if not (matrix.ROOT / path).exists()] == []


def test_every_variant_has_a_name_of_its_own_and_another_way_to_compile() -> None:
    variants = list(matrix.variants())
    assert len({variant.name for variant in variants}) == len(variants)
    assert len({(variant.compiler, variant.flags) for variant in variants}) == len(variants)
