"""Figures of accuracy are those of the two models' own logits, computed by transformers."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile

import pytest
import torch

from serve_app.config import ModelConfig
from serve_app.engine.accuracy import Reference, text_logits
from serve_app.replica.accuracy import load_runner
from tests.support.families import small_config
from tests.support.mixtures import runner_of
from tests.support.tiny_models import make_model, tiny_config

CHUNKS = (tuple(range(3, 43)), tuple(range(50, 71)), (9, 8))


def silent(line: str) -> None:
    pass


def saved(folder: Path, seed: int) -> tuple[ModelConfig, torch.nn.Module]:
    model = make_model(tiny_config("llama"))
    torch.manual_seed(seed)
    with torch.no_grad():
        for each in model.parameters():
            each.add_(torch.randn_like(each) * 0.01 * seed)
    model.save_pretrained(folder)
    engine = {"num_blocks": 8, "max_sequences": 1}
    config = ModelConfig(name="m", source=str(folder), dtype="float32", device="cpu", engine=engine)
    return config, model


def log_probabilities(model: torch.nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        rows = [model(torch.tensor([each]), use_cache=False).logits[0, :-1] for each in CHUNKS]
    return torch.cat(rows).double().log_softmax(-1)


def test_they_are_those_of_the_models_own_logits(tmp_path: Path) -> None:
    (first, one), (second, other) = saved(tmp_path / "a", 0), saved(tmp_path / "b", 1)
    want, got = log_probabilities(one), log_probabilities(other)
    wanted = torch.tensor([each for chunk in CHUNKS for each in chunk[1:]])[:, None]
    with TemporaryFile() as file:
        reference = Reference(file, load_runner(first, silent), CHUNKS, silent)
        found = reference.compare(load_runner(second, silent), silent)
    divergence = (want.exp() * (want - got)).sum(-1)
    assert found.tokens == len(wanted) == 60
    assert found.mean_divergence == pytest.approx(float(divergence.mean()), rel=1e-3)
    assert found.largest_divergence == pytest.approx(float(divergence.max()), rel=1e-3)
    own, others = (float((-each.gather(1, wanted).mean()).exp()) for each in (want, got))
    assert (found.perplexity, found.reference_perplexity) == pytest.approx((others, own), rel=1e-4)
    assert found.agreement == float((want.argmax(-1) == got.argmax(-1)).double().mean())
    assert 0 < found.agreement < 1


@pytest.mark.parametrize("family", ["llama", "lfm2"])
def test_a_text_in_pieces_has_the_logits_of_the_whole(family: str) -> None:
    config = tiny_config("llama") if family == "llama" else small_config(family)
    model = make_model(config)
    ids = [3 + number % 50 for number in range(45)]
    with torch.inference_mode():
        want = model(torch.tensor([ids]), use_cache=False).logits[0]
    runner = runner_of(model)
    pieces = list(text_logits(runner, ids, 16))
    assert [len(each) for each in pieces] == [16, 16, 13]
    torch.testing.assert_close(torch.cat(pieces), want, rtol=2e-5, atol=2e-4)
    with pytest.raises(ValueError, match="does not fit"):
        next(text_logits(runner, [1] * 5000, 16))
