"""The page of commands: what `serve-app COMMAND --help` prints, for every command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import click

from serve_app.cli.main import cli

_HEAD: Final = """# Commands

What `serve-app COMMAND --help` says, made from the commands themselves.
[Operations](../operations.md#command-line) has them in use. `python -m serve_app.cli` is the same as
`serve-app`.
"""


def page() -> str:
    """The whole page, in Markdown."""
    return "\n".join([_HEAD, *(_section(name, command) for name, command in _commands(cli, "serve-app"))])


def _commands(group: click.Group, prefix: str) -> Iterator[tuple[str, click.Command]]:
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            if command.invoke_without_command:
                yield f"{prefix} {name}", command
            yield from _commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


def _section(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=name, max_content_width=100, terminal_width=100)
    context.help_option_names = ["-h", "--help"]
    return f"## `{name}`\n\n```text\n{command.get_help(context).rstrip()}\n```\n"
