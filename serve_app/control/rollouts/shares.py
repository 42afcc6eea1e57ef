"""How the percentages of an endpoint's traffic change in a rollout. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Mapping


def with_share(former: Mapping[str, int], entity: str, percentage: int) -> dict[str, int]:
    """`percentage` for `entity`, the rest for the other entities as they shared the traffic before.

    Whole numbers that add up to 100; entities without traffic are left out. Raises ValueError where the
    rest has nobody to go to.
    """
    others = {name: share for name, share in former.items() if name != entity and share > 0}
    rest, total = 100 - percentage, sum(others.values())
    if rest and not total:
        raise ValueError("no other entity has traffic")
    shares = {name: rest * share // total for name, share in others.items()} if rest else {}
    # What rounding left over goes to those that lost most by it, the first of them first.
    lost = sorted(others, key=lambda name: -(rest * others[name] % total)) if rest else []
    for name in lost[: rest - sum(shares.values())]:
        shares[name] += 1
    shares[entity] = percentage
    return present(shares)


def present(traffic: Mapping[str, int]) -> dict[str, int]:
    """The entities that have traffic."""
    return {name: share for name, share in traffic.items() if share > 0}
