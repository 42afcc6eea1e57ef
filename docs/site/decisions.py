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
    "models": "Models",
    "serving": "Serving",
    "network": "Network",
    "endpoints": "Endpoints and limits",
    "usage": "Usage and memory",
    "memory": "Usage and memory",
    "fastapi": "Serving",
    "channel": "Serving",
    "delta": "Serving",
    "deploy": "Endpoints and limits",
    "detokenizing": "Chat",
    "embeddings": "Embeddings",
    "grammar": "Structured output",
    "openai": "OpenAI's protocol",
    "chat": "Chat",
    "questions": "Chat",
    "databricks": "Databricks' protocol",
    "mindie": "MindIE's protocol",
    "ovms": "OpenVINO Model Server's protocol",
    "triton": "Triton's protocol",
}
REST: Final = "The project"
_HEAD: Final = """# Decisions

One short record each: context, decision, consequence, and the figure behind it where there is one. A figure
has its command and its machine beside it. A decision is overturned by a change of its record.
"""


def page() -> str:
    """The whole page, in Markdown."""
    records: dict[str, list[str]] = defaultdict(list)
    for path in sorted(FOLDER.glob("*.md")):
        title = path.read_text("utf-8").partition("\n")[0].removeprefix("# ")
        records[SUBJECTS.get(path.stem.partition("-")[0], REST)].append(f"- [{title}]({path.name})")
    order = [*dict.fromkeys(SUBJECTS.values()), REST]
    sections = [
        f"## {subject}\n\n" + "\n".join(records[subject]) + "\n" for subject in order if records[subject]
    ]
    return "\n".join([_HEAD, *sections])
