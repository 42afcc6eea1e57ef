"""The list of decisions, by subject: each record's title, from the records themselves."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parents[1] / "decisions"
# the first word of a record's file name -> the heading that it stands under
SUBJECTS: Final = {
    "engine": "Engine",
    "cpu": "CPU",
    "kernels": "CPU",
    "gpu": "GPU",
    "models": "Models",
    "embeddings": "Embeddings",
    "grammar": "Structured output",
    "chat": "Chat",
    "openai": "OpenAI's protocol",
    "anthropic": "Anthropic's protocol",
    "databricks": "Databricks' protocol",
    "ovms": "OpenVINO Model Server's protocol",
    "triton": "Triton's protocol",
    "serving": "Serving",
    "network": "Network",
    "endpoints": "Endpoints and limits",
    "rollouts": "Rollouts",
    "guardrails": "Guardrails",
    "keys": "API keys",
    "usage": "Usage",
    "control": "Control plane",
    "console": "Console",
    "project": "The project",
}
_HEAD: Final = """# Decisions

Short records of what was decided: context, decision, consequence, and the figure behind it where there is
one. A figure has its command and its machine beside it. A record may hold several decisions of one subject,
each under its own heading. To overturn a decision, change its record.
"""


def page() -> str:
    """The whole page, in Markdown."""
    records: dict[str, list[str]] = defaultdict(list)
    for path in sorted(FOLDER.glob("*.md")):
        title = path.read_text("utf-8").partition("\n")[0].removeprefix("# ")
        records[SUBJECTS[path.stem.partition("-")[0]]].append(f"- [{title}]({path.name})")
    sections = [
        f"## {subject}\n\n" + "\n".join(records[subject]) + "\n"
        for subject in dict.fromkeys(SUBJECTS.values())
    ]
    return "\n".join([_HEAD, *sections])
