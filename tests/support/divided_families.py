"""Every family of transformers' causal language models, divided among two ranks."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import torch

from serve_app.engine.batch import build_batch
from serve_app.engine.model.forward import UnsupportedModel
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.sequence import Chunk
from serve_app.models.errors import ModelLoadError
from serve_app.models.guards import check_config
from serve_app.replica.accuracy import load_runner
from tests.support.families import Verdict, save_small, small_config
from tests.support.ranks import divided_config, runners
from tests.support.tiny_models import make_sequence

IDS: Final = [5, 9, 17, 33, 2, 64, 90, 12, 7]
FEW: Final = 3  # rows
CLOSE: Final = 1e-4


def judge_divided(family: str) -> Verdict:
    """Load a small checkpoint on one rank and on two, and compare their logits.

    `served`: logits are close, and both ranks have the same bits, also with fewer rows if one rank has; with
    the parts of layers that ranks share. `refused`: by two ranks alone. `skipped`: by one, as well.
    """
    config = small_config(family)
    with tempfile.TemporaryDirectory() as folder:
        try:
            check_config(config)
            save_small(config, Path(folder))
            one = load_runner(divided_config(Path(folder), 1, max_adapters=0), lambda _: None)
            wanted = _logits(one)
            is_exact = all(torch.equal(_logits(one, rows), wanted[:rows]) for rows in range(1, len(IDS)))
        except (ModelLoadError, UnsupportedModel) as error:
            return Verdict(family, "skipped", str(error))
        try:
            parts = runners(Path(folder), 2, max_adapters=0)
        except ModelLoadError as error:
            return Verdict(family, "refused", str(error))
        every = parts[0].threads.run(lambda groups: _logits(parts[groups.every.rank].runner))
        few = parts[0].threads.run(lambda groups: _logits(parts[groups.every.rank].runner, FEW))
    if not all(torch.equal(each, every[0]) for each in every):
        return Verdict(family, "failed", "the ranks differ")
    away = float((every[0] - wanted).abs().max())
    if not away < CLOSE:
        return Verdict(family, "failed", f"logits differ by {away:.1e}")
    if is_exact and not torch.equal(few[0], every[0][:FEW]):
        return Verdict(family, "failed", f"rows differ by {float((few[0] - every[0][:FEW]).abs().max()):.1e}")
    divided = {path.rpartition(".")[2] for path in parts[0].split.summed}
    return Verdict(family, "served", path=tuple(sorted(divided)))


def _logits(runner: ModelRunner, rows: int = len(IDS)) -> torch.Tensor:
    chunk = Chunk(make_sequence("a", IDS[:rows], [0]), 0, rows, 0)
    return runner.run(build_batch([chunk], 16, torch.device("cpu")))


if __name__ == "__main__":
    import sys

    from tests.support.families import families, judge_apart

    for name in sys.argv[1:] or families():
        verdict = judge_apart(name, judge_divided)
        print(name, verdict.outcome, verdict.reason, *verdict.path, sep=" | ", flush=True)
