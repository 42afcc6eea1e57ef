"""Random histories of endpoints, applications, gateways and deaths: what the plan promises holds in each.

Nothing that is wanted is forgotten, nothing is left over, and no gateway routes to an application that was
deleted. The registry is a few lines here: its own rules are tested in `test_registry.py`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from serve_app.control.endpoints.cluster import AppSeen, AppStatus
from serve_app.control.endpoints.plan import Action, Delete, Deploy, Fail, Promote, Seen, Settle, Wanted, plan
from serve_app.control.endpoints.state import AppSpec

STEPS = 60
CALM = 40  # turns without news, after which all must be as it is wanted
ORPHAN = "rt-of-a-former-database-r1"
FOREIGN = "model-of-the-operator"


def spec(name: str, replicas: int = 1, model: str = "a") -> AppSpec:
    return AppSpec(
        name=name,
        model={"name": model},
        num_cpus=0.5,
        num_gpus=0.0,
        min_replicas=replicas,
        max_replicas=replicas,
    )


@dataclass
class Row:
    """An endpoint as the registry has it."""

    serving: tuple[AppSpec, ...] = ()
    pending: tuple[AppSpec, ...] | None = None
    is_late: bool = False
    switch: int = 0


@dataclass
class Gateway:
    """Routes by the endpoints of one version."""

    version: int = 0
    routes: dict[str, tuple[str, ...]] = field(default_factory=dict)


class World:
    """A registry, a cluster and gateways, all of which change by chance."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.rows: dict[str, Row] = {}
        self.apps = {ORPHAN: AppSeen(AppStatus.UP, "", (1, 1)), FOREIGN: AppSeen(AppStatus.UP, "", (1, 1))}
        self.gateways = [Gateway(), Gateway()]
        self.version = 1
        self.revision = 1
        self.doomed: set[str] = set()  # applications that do not come up
        self.healthy = False  # nothing fails any more

    # What clients, machines and gateways do.

    def happens(self) -> None:
        """One thing, by chance."""
        self.chance.choice(
            (
                *(self.create, self.update, self.delete, self.progress, self.progress, self.progress),
                *(self.follow, self.follow, self.die, self.lose_cluster, self.grow_late),
            )
        )()

    def create(self) -> None:
        if len(self.rows) < 4:
            name = f"endpoint-{self.revision}"
            self.rows[name] = Row(pending=tuple(self.new(name) for _ in range(self.chance.randint(0, 2))))

    def update(self) -> None:
        free = [name for name, row in self.rows.items() if row.pending is None and not row.switch]
        if not free:
            return
        name = self.chance.choice(free)
        kept = [each for each in self.rows[name].serving if self.chance.random() < 0.6]
        resized = [
            replace(each, min_replicas=(n := self.chance.randint(1, 3)), max_replicas=n) for each in kept
        ]
        added = [self.new(name) for _ in range(self.chance.randint(0, 2))]
        self.rows[name].pending = (*resized, *added)
        self.rows[name].is_late = False

    def new(self, endpoint: str) -> AppSpec:
        self.revision += 1
        made = spec(f"rt-{endpoint}-r{self.revision}", self.chance.randint(1, 3))
        if self.chance.random() < 0.2:
            self.doomed.add(made.name)
        return made

    def delete(self) -> None:
        if self.rows:
            del self.rows[self.chance.choice(list(self.rows))]
            self.version += 1

    def progress(self) -> None:
        for name, app in list(self.apps.items()):
            if self.chance.random() < 0.5:
                continue
            if app.status is AppStatus.GOING:
                del self.apps[name]
            elif app.status is AppStatus.COMING:
                status = AppStatus.FAILED if name in self.doomed and not self.healthy else AppStatus.UP
                self.apps[name] = replace(app, status=status)

    def follow(self) -> None:
        self.take_snapshot(self.chance.choice(self.gateways))

    def take_snapshot(self, gateway: Gateway) -> None:
        gateway.version = self.version
        gateway.routes = {
            name: tuple(each.name for each in row.serving) for name, row in self.rows.items() if row.serving
        }

    def die(self) -> None:
        """An application that runs fails for good."""
        up = [name for name, app in self.apps.items() if app.status is AppStatus.UP and name != FOREIGN]
        if up and self.chance.random() < 0.3:
            name = self.chance.choice(up)
            self.apps[name] = replace(self.apps[name], status=AppStatus.FAILED)

    def lose_cluster(self) -> None:
        """The cluster is started anew: the operator's applications are back, and no others."""
        if self.chance.random() < 0.1:
            self.apps = {FOREIGN: self.apps[FOREIGN]}

    def grow_late(self) -> None:
        for row in self.rows.values():
            if row.pending is not None and not self.healthy:
                row.is_late = self.chance.random() < 0.3

    # What the control plane sees and does.

    def turn(self) -> list[Action]:
        """Plan once, and take the actions; a control plane that dies takes the first few."""
        actions = plan(self.wanted(), self.seen())
        dies = not self.healthy and self.chance.random() < 0.2
        taken = actions[: self.chance.randint(0, len(actions))] if dies else actions
        for action in taken:
            self.act(action)
        return actions

    def wanted(self) -> list[Wanted]:
        return [
            Wanted(
                id=name,
                serving=row.serving,
                pending=row.pending,
                is_late=row.is_late,
                is_followed=all(g.version >= row.switch for g in self.gateways) if row.switch else None,
            )
            for name, row in self.rows.items()
        ]

    def seen(self) -> Seen:
        is_known = self.healthy or self.chance.random() < 0.8
        failed = frozenset(name for name, app in self.apps.items() if app.status is AppStatus.FAILED)
        again = failed if self.healthy or self.chance.random() < 0.3 else frozenset()
        return Seen(dict(self.apps), self.routed() if is_known else None, again)

    def routed(self) -> frozenset[str]:
        return frozenset(app for g in self.gateways for apps in g.routes.values() for app in apps)

    def act(self, action: Action) -> None:
        match action:
            case Deploy(wanted):
                known = self.apps.get(wanted.name)
                assert known is None or known.status is not AppStatus.GOING
                self.apps[wanted.name] = AppSeen(AppStatus.COMING, "", wanted.size)
            case Delete(app):
                self.check_delete(app)
                self.apps[app] = replace(self.apps[app], status=AppStatus.GOING)
            case Promote(name):
                row = self.rows[name]
                assert row.pending is not None
                for each in row.pending:  # the former configuration served until all of this was up
                    assert self.apps[each.name] == AppSeen(AppStatus.UP, "", each.size)
                row.serving, row.pending = row.pending, None
                self.version += 1
                row.switch = self.version
            case Fail(name, _, _):
                self.rows[name].pending = None
            case Settle(name):
                assert all(gateway.version >= self.rows[name].switch for gateway in self.gateways)
                self.rows[name].switch = 0

    def check_delete(self, app: str) -> None:
        assert app.startswith("rt-")
        wanted = {each.name for row in self.rows.values() for each in (*row.serving, *(row.pending or ()))}
        is_dead = self.apps[app].status is AppStatus.FAILED  # nobody misses it, and it may be started anew
        assert is_dead or (app not in self.routed() and app not in wanted)

    def check_calm(self) -> None:
        """All is as it is wanted."""
        wanted = {each.name: each.size for row in self.rows.values() for each in row.serving}
        ours = {name: app.size for name, app in self.apps.items() if name.startswith("rt-")}
        assert ours == wanted
        assert all(app.status is AppStatus.UP for app in self.apps.values())
        assert all(row.pending is None and not row.switch for row in self.rows.values())
        assert FOREIGN in self.apps
        assert not plan(self.wanted(), self.seen())


def live(seed: int) -> None:
    """One history, and the calm after it."""
    world = World(seed)
    for _ in range(STEPS):
        world.happens()
        if world.chance.random() < 0.7:
            world.turn()
    world.healthy = True
    for _ in range(CALM):
        world.turn()
        world.progress()
        for gateway in world.gateways:
            world.take_snapshot(gateway)
    world.check_calm()


def test_random_histories() -> None:
    for seed in range(1_000):
        live(seed)


@pytest.mark.full
def test_many_random_histories() -> None:
    for seed in range(1_000, 20_000):
        live(seed)


def test_nothing_is_deleted_while_nobody_knows_where_gateways_route() -> None:
    apps = {ORPHAN: AppSeen(AppStatus.UP, "", (1, 1))}
    assert plan([], Seen(apps, None)) == []
    assert plan([], Seen(apps, frozenset({ORPHAN}))) == []
    assert plan([], Seen(apps, frozenset())) == [Delete(ORPHAN)]


def test_a_failure_names_the_application_and_its_reason() -> None:
    new, old = spec("rt-e-r2"), spec("rt-e-r1")
    apps = {
        "rt-e-r1": AppSeen(AppStatus.UP, "", (1, 1)),
        "rt-e-r2": AppSeen(AppStatus.FAILED, "no such file", (1, 1)),
    }
    wanted = [Wanted(id="e", serving=(old,), pending=(new,))]
    assert plan(wanted, Seen(apps, frozenset({"rt-e-r1"}))) == [
        Fail("e", "rt-e-r2", "no such file"),
        Delete("rt-e-r2"),
    ]


def test_a_change_of_size_alone_is_made_in_place() -> None:
    one, three = spec("rt-e-r1"), spec("rt-e-r1", 3)
    apps = {"rt-e-r1": AppSeen(AppStatus.UP, "", (1, 1))}
    wanted = [Wanted(id="e", serving=(one,), pending=(three,))]
    assert plan(wanted, Seen(apps, frozenset({"rt-e-r1"}))) == [Deploy(three)]
    grown = {"rt-e-r1": AppSeen(AppStatus.UP, "", (3, 3))}
    assert plan(wanted, Seen(grown, frozenset({"rt-e-r1"}))) == [Promote("e")]
