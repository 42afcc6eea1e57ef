"""The form of what lies between an expert's products is learnt from numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from serve_app.engine.experts.gate import Gate, gate_of, interleaved
from serve_app.engine.experts.packed import has_experts
from tests.support.mixtures import mixture


def experts_of(family: str) -> nn.Module:
    return next(module for module in mixture(family).modules() if has_experts(module))


@pytest.mark.parametrize(
    ("family", "gate"),
    [
        ("qwen3_moe", Gate()),
        ("gpt_oss", Gate(limit=7.0, alpha=1.702, added=1.0)),
        ("minimax_m3_vl_text", Gate(limit=7.0, alpha=1.702, added=1.0)),
    ],
)
def test_the_form_of_a_family_is_found(family: str, gate: Gate) -> None:
    assert gate_of(experts_of(family)) == gate


def test_another_form_is_left_to_the_module() -> None:
    experts: Any = experts_of("qwen3_moe")
    experts.act_fn = nn.Tanh()
    assert gate_of(experts) is None
    experts.act_fn = nn.GELU(approximate="tanh")
    assert gate_of(experts) == Gate(gelu=True)


def test_gates_and_ups_in_turn_are_told_apart() -> None:
    given = torch.tensor([0, 10, 1, 11, 2, 12])
    assert given[interleaved(6)].tolist() == [0, 1, 2, 10, 11, 12]
