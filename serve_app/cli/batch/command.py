"""`serve-app batch`: reads requests from a file, and writes the answers to another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import BinaryIO, Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from serve_app.cli.batch.lines import Answers, LineError, requests_of
from serve_app.cli.batch.run import Batch, Progress
from serve_app.cli.output import INTERRUPTED, number, print_note
from serve_app.cli.server import Server, ServerError, server_options

SHOW_S: Final = 0.2


@click.command("batch")
@click.argument("requests", type=click.File("rb"))
@click.argument("answers", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1024),
    default=32,
    show_default=True,
    help="Requests that are open at once.",
)
@click.option(
    "--patience",
    type=click.FloatRange(min=0),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Without any answer for so long, the server is given up.",
)
@server_options
def batch(server: Server, requests: BinaryIO, answers: Path, concurrency: int, patience: float) -> None:
    """Answer a file of requests.

    REQUESTS has a line of JSON per request, as in OpenAI's Batch API: custom_id, method (POST), url and
    body. The url is any path of the server, such as /v1/chat/completions, /v1/embeddings or /v1/messages.
    `-` reads standard input. ANSWERS gets a line for each answer, in the order in which they come.

    A request is repeated while the server is busy or away. After an interruption, run the command again to
    continue: requests already in ANSWERS are not sent again. The exit status is 0 if every request has an
    answer and no request of this run was refused.
    """
    progress, began = Progress(), time.monotonic()
    total = _count(requests)
    server.get("/livez")  # fail at once if there is no server
    try:
        written = Answers(answers)
    except OSError as error:
        raise click.ClickException(f"{answers}: {error.strerror}") from error
    except LineError as error:
        raise click.ClickException(str(error)) from error
    if written.done:
        print_note(f"{number(len(written.done))} answers are in {answers} already")
    work = Batch(server, written, progress, patience).run(requests_of(requests), concurrency)
    try:
        asyncio.run(_watched(work, progress, len(written.done), total))
    except LineError as error:
        stopped = _stopped(progress, began, once="once the line is mended, ")
        raise click.ClickException(f"{error}. {stopped}") from error
    except ServerError as error:
        raise click.ClickException(f"{error.message}. {_stopped(progress, began)}") from error
    except OSError as error:
        raise click.ClickException(f"{answers}: {error.strerror}. {_stopped(progress, began)}") from error
    except KeyboardInterrupt:
        print_note(_stopped(progress, began))
        raise click.exceptions.Exit(INTERRUPTED) from None
    finally:
        written.close()
    click.echo(_said(progress, began))
    if progress.refused:
        raise click.exceptions.Exit(1)


def _count(file: BinaryIO) -> int | None:
    """The number of lines of a file that can be read twice; None for a pipe."""
    if not file.seekable():
        return None
    count = sum(1 for line in file if line.strip())
    file.seek(0)
    return count


async def _watched(
    work: Coroutine[None, None, None], progress: Progress, done: int, total: int | None
) -> None:
    """Await `work`. In a terminal, a progress bar is shown meanwhile. Raises what `work` raises."""
    console = Console(stderr=True)
    if not console.is_terminal:
        return await work
    columns = (TextColumn("answering"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total, completed=done)
        working = asyncio.ensure_future(work)
        while not working.done():
            await asyncio.wait([working], timeout=SHOW_S)
            bar.update(task, completed=done + progress.answered)
    return await working


def _stopped(progress: Progress, began: float, once: str = "") -> str:
    return f"Stopped after {_said(progress, began)}; {once}the same command goes on"


def _said(progress: Progress, began: float) -> str:
    seconds = max(time.monotonic() - began, 1e-9)
    parts = [f"{number(progress.answered)} answers"]
    if progress.refused:
        parts.append(f"{number(progress.refused)} of them refusals")
    if progress.tokens:
        parts.append(f"{number(progress.tokens)} tokens, {progress.tokens / seconds:,.1f} a second")
    return ", ".join(parts)
