"""A bias over the whole vocabulary: -inf excludes a token, whatever else is done to its logit."""

from __future__ import annotations

import numpy as np
import pytest

from serve_app.engine.request.inputs import check_inputs
from serve_app.errors import InvalidField
from serve_app.types import EngineRequest, SamplingParams, Tensor

NONE = float("-inf")


def request(bias: list[float]) -> EngineRequest:
    tensor = Tensor(dtype="FP32", shape=(len(bias),), data=np.asarray(bias, "<f4").tobytes())
    return EngineRequest(id="a", token_ids=(1,), sampling=SamplingParams(), bias=tensor)


@pytest.mark.parametrize("bias", [[0.0, NONE, 1.0], [NONE, NONE, -3.4e38]])
def test_a_bias_may_exclude_all_tokens_but_one(bias: list[float]) -> None:
    check_inputs(request(bias), vocab_size=3, window=8, table_width=None)


@pytest.mark.parametrize("bias", [[NONE] * 3, [0.0, float("inf"), 0.0], [0.0, float("nan"), 0.0]])
def test_a_bias_that_means_nothing_is_refused(bias: list[float]) -> None:
    with pytest.raises(InvalidField, match="bias must hold numbers or -inf, and a finite one"):
        check_inputs(request(bias), vocab_size=3, window=8, table_width=None)
