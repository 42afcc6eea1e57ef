"""Functions with a state by kernels of a GPU: in Triton's interpreter where there is no device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from serve_app.engine.cuda.states.launch import TritonStates
from serve_app.engine.cuda.trial.states import LENGTHS, calls, run, states_fault
from serve_app.engine.state.pools import StepStates
from serve_app.engine.state.waves import Span, Wave
from tests.support.triton_interpreter import LONG

pytestmark = pytest.mark.usefixtures("one_thread")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NAMES = [name for name, _ in calls(torch.float32, DEVICE)]


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, pytest.param(torch.bfloat16, marks=LONG), pytest.param(torch.float16, marks=LONG)],
)
def test_the_kernels_give_what_plain_torch_gives(dtype: torch.dtype) -> None:
    assert states_fault(dtype, DEVICE) is None


class Forgetful(TritonStates):
    """Reads the states of other slots."""

    def recur(self, query: torch.Tensor, *given: Any) -> None:
        key, value, decay, part, pool, out, wave = given
        super().recur(query, key, value, decay, part, pool.flip(0).contiguous(), out, wave)


def test_a_wrong_kernel_is_a_fault_that_names_the_function() -> None:
    fault = states_fault(torch.float32, DEVICE, Forgetful())
    assert fault is not None
    assert fault.startswith("the outputs of gated_delta_rule differ by")


@pytest.mark.parametrize("name", [NAMES[0], NAMES[2], NAMES[-1]])
def test_bits_do_not_depend_on_pieces_or_on_other_sequences(name: str) -> None:
    """The longest sequence beside others in one piece, and alone in three."""
    call = dict(calls(torch.float32, DEVICE))[name]
    want, kept = run(call, TritonStates(), DEVICE)
    pool = run(call, None, DEVICE, ())[1]
    first, length, slot = LENGTHS[0], LENGTHS[1], 1
    for begin, end in ((0, 1), (1, 9), (9, length)):
        wave = Wave([Span(first + begin, end - begin, slot, slot + len(LENGTHS))], DEVICE)
        got = call(StepStates([pool], [wave], TritonStates()))
        at = got.shape.index(sum(LENGTHS) + 2)  # where the tokens are
        span = first + begin, end - begin
        assert torch.equal(got.narrow(at, *span), want.narrow(at, *span))
        pool[slot] = pool[slot + len(LENGTHS)]
    assert torch.equal(pool[slot + len(LENGTHS)], kept[slot + len(LENGTHS)])
