"""The command as a whole: quick to help, and the same by either name."""

import subprocess
import sys
from pathlib import Path

from serve_app import __version__
from serve_app.cli.main import cli

COMMANDS = sorted(cli.commands)


def test_help_loads_neither_torch_nor_ray():
    program = (
        "import sys; from serve_app.cli.main import cli\n"
        f"for words in {[[], *([name] for name in COMMANDS)]!r}:\n"
        "    cli([*words, '--help'], standalone_mode=False)\n"
        "    heavy = {'torch', 'ray', 'transformers', 'starlette'} & set(sys.modules)\n"
        "    heavy and sys.exit(f'{words} loaded {heavy}')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Usage:") == 1 + len(COMMANDS)


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "serve_app.cli", "--version"], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == f"serve-app, version {__version__}\n"


def test_every_command_is_listed_with_its_whole_first_line(invoke):
    listed = invoke("--help").output
    for name in COMMANDS:
        summary = cli.commands[name].help.split("\n")[0]
        assert f"{name} " in listed
        assert summary in listed, "a summary is cut off"


def test_every_command_stands_in_the_operations_guide():
    guide = (Path(__file__).parents[3] / "docs" / "operations.md").read_text("utf-8")
    assert [name for name in COMMANDS if f"| `serve-app {name}" not in guide] == []
