"""Engine steps of two trees of this project, in turns, each in a process of its own.

    git worktree add build/before COMMIT
    python benchmarks/step_trees.py build/before . build/models/smol135 --turns 5 \\
        -- --prompts 128 512 --decodes 16 32 --quantization int8

What follows `--` goes to step_profile.py of each tree. Two builds of the kernels in one process, as in
kernels_ab.py, do not share its memory evenly: their prompts differ though their sources are the same. Prints
a Markdown table: medians over the turns, of whole steps and of attention, and the ratios of all turns.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PARTS = ("all", "attention")

Steps = dict[tuple[str, str], float]  # milliseconds by step and part


def measured(tree: Path, model: Path, options: list[str]) -> Steps:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "steps.json"
        command = [sys.executable, "benchmarks/step_profile.py", str(model), *options, "--out", str(out)]
        environment = os.environ | {"PYTHONPATH": str(tree)}
        subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.DEVNULL)
        steps = json.loads(out.read_text("utf-8"))["steps"]
    return {
        (step["step"], part): step["ms"] if part == "all" else step["parts_ms"][part]
        for step in steps
        for part in PARTS
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("model", type=Path, help="model folder, see make_model.py")
    parser.add_argument("--turns", type=int, default=5)
    ours, options = sys.argv[1:], []
    if "--" in ours:
        ours, options = ours[: ours.index("--")], ours[ours.index("--") + 1 :]
    args = parser.parse_args(ours)
    trees = args.before.resolve(), args.after.resolve()
    found: dict[Path, list[Steps]] = {tree: [] for tree in trees}
    for turn in range(args.turns):
        for tree in trees if turn % 2 == 0 else reversed(trees):
            found[tree].append(measured(tree, args.model.resolve(), options))
    print(f"`python {' '.join(sys.argv)}`\n\n{datetime.date.today()}\n")
    print("| step | part | before ms | after ms | ratio | of each turn |\n|---|---|---|---|---|---|")
    before, after = (found[tree] for tree in trees)
    for step, part in before[0]:
        pairs = [(one[step, part], other[step, part]) for one, other in zip(before, after, strict=True)]
        first, second = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratios = ", ".join(f"{one / other:.2f}" for one, other in pairs)
        print(f"| {step} | {part} | {first:.2f} | {second:.2f} | {first / second:.2f} | {ratios} |")


if __name__ == "__main__":
    main()
