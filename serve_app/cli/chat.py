"""`serve-app chat`: a chat in the terminal, or one question per line from a pipe."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, Final

import click

from serve_app.cli.conversation import Conversation, Reply
from serve_app.cli.output import print_note, printable
from serve_app.cli.server import Server, ServerError, server_options
from serve_app.endpoints.endpoint import Task

PROMPT: Final = "> "
TASK: Final = Task.CHAT.value
HELP: Final = "/reset forgets the chat, /system TEXT sets instructions (none: removes them), /quit ends"


@click.command()
@click.argument("model", required=False)
@server_options
@click.option("--system", metavar="TEXT", help="Instructions for the model, before the chat.")
@click.option("--temperature", type=click.FloatRange(min=0), help="Randomness; 0 takes the likeliest tokens.")
@click.option(
    "--top-p", type=click.FloatRange(min=0, min_open=True, max=1), help="Nucleus of the distribution."
)
@click.option("--max-tokens", type=click.IntRange(min=1), help="Most tokens of one answer.")
@click.option("--seed", type=click.IntRange(min=0), help="Makes a sampled answer repeatable.")
@click.option("--stats", is_flag=True, help="Show tokens and speed after each answer.")
def chat(server: Server, model: str | None, system: str | None, stats: bool, **options: Any) -> None:
    """Chat with MODEL on a running server.

    MODEL may be left out where there is only one. In a terminal, Ctrl-C stops an answer and
    Ctrl-D ends the chat; /reset, /system TEXT and /quit are commands. From a pipe, each line
    is a question of the same chat.

    \b
    serve-app chat --system "Reply in one word."
    echo "What is the capital of France?" | serve-app chat demo-chat --temperature 0
    """
    interactive = _is_terminal()
    given = {name: value for name, value in options.items() if value is not None}
    talk = Conversation(server, model or _only_model(server), system=system, options=given)
    for line in _typed() if interactive else sys.stdin:
        question = line.strip()
        if interactive and question == "/quit":
            return
        if interactive and question.startswith("/"):
            _command(talk, question)
        elif question:
            _answer(talk, question, interactive=interactive, stats=stats)


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _answer(talk: Conversation, question: str, *, interactive: bool, stats: bool) -> None:
    try:
        answer = talk.ask(question, _show)
    except ServerError as error:
        if not interactive:
            raise
        click.echo()
        error.show()
        return
    click.echo()
    if answer.stopped and not interactive:
        raise click.Abort
    note = _note(answer, stats=stats)
    if note:
        print_note(f"[{note}]")


def _note(answer: Reply, *, stats: bool) -> str:
    cut = "cut at the token limit" if answer.finish == "length" else ""
    parts = ("stopped" if answer.stopped else cut, answer.statistics() if stats else "")
    return ", ".join(filter(None, parts))


def _command(talk: Conversation, line: str) -> None:
    name, _, text = line.partition(" ")
    if name == "/reset":
        talk.reset()
        said = "the chat starts anew"
    elif name == "/system":
        talk.system = text.strip() or None
        said = "the instructions are set" if talk.system else "there are no instructions any more"
    else:
        said = HELP
    print_note(f"[{said}]")


def _show(text: str) -> None:
    click.echo(printable(text), nl=False)


def _typed() -> Iterator[str]:
    """Lines from the terminal, until the end of the input."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # gives `input` editing and history
    print_note(HELP)
    while True:
        try:
            line = input(PROMPT)
        except KeyboardInterrupt:
            click.echo("\n(/quit or Ctrl-D ends the chat)")
            continue
        except EOFError:
            click.echo()
            return
        yield line


def _only_model(server: Server) -> str:
    models = [entry for entry in server.read("/v1/models").get("data", []) if entry.get("task", TASK) == TASK]
    names = [str(entry["id"]) for entry in models]
    if len(names) == 1:
        return names[0]
    if not names:
        raise ServerError("no model is ready to chat; `serve-app health` says what is missing")
    raise click.UsageError(f"several models answer here; name one of: {', '.join(map(printable, names))}")
