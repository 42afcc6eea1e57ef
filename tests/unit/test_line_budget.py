"""Each part of `serve_app` has a budget of lines, so that growth is a decision and not an accident.

Raise a budget only with a reason, in the message of the commit that does it. Lower it when a part shrinks.
"""

from collections import Counter
from pathlib import Path

import pytest

import serve_app

ROOT = Path(serve_app.__file__).parent
TOP: str = "."  # the modules beside the packages
SLACK = 1.15  # a budget further above the count is no limit

# part -> the most lines of Python
BUDGET: dict[str, int] = {
    TOP: 710,
    "accounts": 2_160,
    "api": 28_950,
    "channel": 1_180,
    "cli": 3_000,
    "codes": 560,
    "config": 900,
    "console": 4_900,
    "control": 5_950,
    "deployments": 9_200,
    "endpoints": 860,
    "engine": 24_900,
    "guardrails": 850,
    "json_schema": 3_690,
    "live": 340,
    "models": 7_400,
    "replica": 2_980,
    "rpc": 1_210,
    "telemetry": 500,
    "text": 2_950,
    "types": 1_950,
}


def _lines() -> Counter[str]:
    found: Counter[str] = Counter()
    for path in ROOT.rglob("*.py"):
        inside = path.relative_to(ROOT).parts
        found[inside[0] if len(inside) > 1 else TOP] += path.read_bytes().count(b"\n")
    return found


def test_every_part_has_a_budget() -> None:
    assert set(BUDGET) == set(_lines())


@pytest.mark.parametrize("part", sorted(BUDGET))
def test_a_part_stays_within_its_budget(part: str) -> None:
    lines = _lines()[part]
    assert lines <= BUDGET[part], f"serve_app/{part} has {lines} lines; remove some, or raise it and say why"
    assert BUDGET[part] <= lines * SLACK + 50, f"serve_app/{part} shrank to {lines} lines: lower its budget"
