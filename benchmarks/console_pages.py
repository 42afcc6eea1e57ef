"""How long each page of the console takes while the ledger has 10,000 requests.

    python benchmarks/console_pages.py --out benchmarks/results/console_pages.md

One process has the whole service but for Ray and models: gateway, control plane, SQLite, console. Pages are
asked over a socket with a session's cookie, one after the other, in rounds; each round asks every page once.
The first answer of a page, which loads its templates, is measured apart. Five minutes of ten entities are
there for the page Live.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from serve_app.accounts.keys import new_key
from serve_app.heap import settle
from serve_app.live.ring import newest_settled
from serve_app.types import Scope, UsageRecord
from serve_app.types.control import CreateKey, EntityCounts, LiveSlot, ShipUsage, TellLive
from serve_app.types.control.live import NUM_SLOTS
from tests.support.fake_cluster import OPERATOR
from tests.support.gateway import served
from tests.support.whole_service import WholeService, whole_service

DAY_S = 86_400.0
NUM_KEYS, NUM_ENTITIES, DAYS = 50, 10, 60
BATCH = 1000
MOST_S = 0.3  # that a page may take
PAGES = {
    "Playground": "/console/playground",
    "Endpoints": "/console/endpoints",
    "one endpoint": "/console/endpoints/demo",
    "Live": "/console/live",
    "Live: five minutes of all": "/console/api/api/2.0/live?window=300",
    "Live: what is new": "/console/api/api/2.0/live?window=300&endpoint=demo&since=",
    "Usage, 7 days": "/console/usage",
    "Usage, 90 days by key and day": "/console/usage?period=90d&by=key&by=day",
    "Usage, 90 days as CSV": "/console/api/api/2.0/usage?format=csv&by=key,endpoint,entity,day",
    "Keys": "/console/keys",
}


def records(count: int) -> Iterator[UsageRecord]:
    """Requests of two months, of many keys."""
    draw, now = random.Random(1), time.time()
    for place in range(count):
        key = f"key-{draw.randrange(NUM_KEYS)}"
        yield UsageRecord(
            id=f"{place:032x}",
            key_id=key,
            user=f"{key}@example.org",
            groups=("staff", "sea") if draw.random() < 0.5 else ("staff",),
            endpoint=draw.choice(("demo", "org/other")),
            entity=f"entity-{draw.randrange(NUM_ENTITIES)}",
            kind="pay_per_token",
            route="/v1/chat/completions",
            started=now - draw.random() * DAYS * DAY_S,
            outcome=draw.choice(("finished", "finished", "finished", "aborted", "failed")),
            status=200,
            prompt_tokens=draw.randrange(2000),
            completion_tokens=draw.randrange(500),
            first_token_s=draw.random(),
            total_s=5 * draw.random(),
            cost=draw.random() / 100,
            currency="USD",
        )


def slots() -> tuple[LiveSlot, ...]:
    """Five minutes in which every entity streamed all the time."""
    newest = newest_settled(time.time())
    return tuple(
        LiveSlot(
            number=number,
            entities=tuple(
                EntityCounts(
                    endpoint="demo",
                    entity=f"entity-{place}",
                    requests=9,
                    completion_tokens=900,
                    in_flight=4,
                    first_token={30 + each: 2 for each in range(8)},
                    inter_token={40 + each: 50 for each in range(12)},
                )
                for place in range(NUM_ENTITIES)
            ),
        )
        for number in range(newest - NUM_SLOTS, newest + 1)
    )


async def fill(service: WholeService, count: int) -> None:
    for place in range(NUM_KEYS):
        await service.plane.do(CreateKey(name=f"key-{place}", budget=100.0), OPERATOR)
    all_of_them = list(records(count))
    for start in range(0, count, BATCH):
        await service.plane.do(ShipUsage(ended=tuple(all_of_them[start : start + BATCH])), OPERATOR)
    await service.plane.do(TellLive(gateway="other", slots=slots(), is_all=True), OPERATOR)


async def sign_in(client: httpx.AsyncClient, key: str) -> None:
    page = await client.get("/console/sign-in")
    token = page.text.partition('name="csrf-token" content="')[2].partition('"')[0]
    answer = await client.post("/console/sign-in", data={"csrf": token, "key": key})
    if answer.status_code != 303:
        raise RuntimeError(answer.text)


@dataclass(frozen=True)
class Took:
    """One answer: seconds until its last byte, seconds of the processor, and bytes."""

    wall: float
    cpu: float
    size: int


@dataclass
class Page:
    """All answers of one page."""

    first: Took
    later: list[Took] = field(default_factory=list)


async def ask(client: httpx.AsyncClient, path: str) -> Took:
    if path.endswith("since="):
        path += str(time.time() - 5)
    began, worked = time.perf_counter(), time.process_time()
    answer = await client.get(path)
    took = Took(time.perf_counter() - began, time.process_time() - worked, len(answer.content))
    if answer.status_code != 200:
        raise RuntimeError(f"{path}: {answer.status_code} {answer.text[:500]}")
    return took


async def measure(count: int, rounds: int) -> dict[str, Page]:
    key, line = new_key("manager", list(Scope))
    with tempfile.TemporaryDirectory() as folder:
        async with (
            whole_service(Path(folder), line) as service,
            served(service.app) as (host, port),
            httpx.AsyncClient(base_url=f"http://{host}:{port}", trust_env=False, timeout=60) as client,
        ):
            await fill(service, count)
            await sign_in(client, key)
            settle()  # as a gateway does at the end of its start
            found = {}
            for name, path in PAGES.items():
                found[name] = Page(await ask(client, path))
            for _ in range(rounds):
                for name, path in PAGES.items():
                    found[name].later.append(await ask(client, path))
            return found


def report(found: dict[str, Page], count: int, load: float) -> str:
    lines = [
        "# Pages of the console",
        "",
        f"{date.today()}, {os.cpu_count()} cores, load average before: {load:.1f}; "
        f"`python {' '.join(sys.argv)}`.",
        f"{count:,} requests in the ledger (SQLite), {NUM_KEYS} keys; {NUM_ENTITIES} entities at work.",
        "The client is in the same process. CPU is the time of the processor, client's included; it hardly "
        "depends on what else the machine does.",
        "A CSV is a download; the page shows 200 rows of it.",
        "",
        "| page | first ms | median ms | worst ms | CPU median ms | CPU worst ms | kB |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, page in found.items():
        columns = [page.first.wall]
        for times in ([each.wall for each in page.later], [each.cpu for each in page.later]):
            columns += [statistics.median(times), max(times)]
        cells = " | ".join(f"{seconds * 1000:.0f}" for seconds in columns)
        lines.append(f"| {name} | {cells} | {page.first.size / 1000:.0f} |")
    slow = [name for name, page in found.items() if max(each.wall for each in page.later) > MOST_S]
    lines += ["", f"Above {MOST_S * 1000:.0f} ms: {', '.join(slow) or 'none'}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    text = report(asyncio.run(measure(options.requests, options.rounds)), options.requests, load)
    print(text)
    if options.out is not None:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
