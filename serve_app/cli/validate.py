"""`serve-app validate`: finds faults in a deploy file, without deploying it."""

from __future__ import annotations

from pathlib import Path

import click

from serve_app.cli.options import DEPLOY_FILE, read_text


@click.command()
@click.argument("files", metavar="FILE...", type=DEPLOY_FILE, nargs=-1, required=True)
@click.pass_context
def validate(context: click.Context, files: tuple[Path, ...]) -> None:
    """Check deploy files, without deploying them.

    Prints one line per problem: the file and its line, the field, and what to write instead. Exits
    with 1 when a file has an error; warnings alone do not count.
    """
    from serve_app.deployments.deploy_file.file import problems  # Ray comes with it
    from serve_app.deployments.deploy_file.problem import Severity

    failed = False
    for file in files:
        found = problems(read_text(file))
        failed = failed or any(problem.severity is Severity.ERROR for problem in found)
        for problem in found:
            click.echo(problem.of(file))
        if not found:
            click.echo(f"{file}: ok")
    context.exit(1 if failed else 0)
