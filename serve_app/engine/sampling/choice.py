"""The tokens chosen from rows of logits, while they are still on their device.

Does not depend on how tokens are chosen or used.
"""

from __future__ import annotations

from collections import abc
from typing import Final

import torch

from serve_app.engine.sampling.logprobs import entries
from serve_app.engine.sampling.sampled import Sampled
from serve_app.engine.transfer import Receipt
from serve_app.errors import NumericalError
from serve_app.types import ErrorInfo, PositionLogprobs

NOT_FINITE: Final = -1  # in place of a token: the row of logits holds NaN or +inf, or nothing else than -inf
NOTHING_LEFT: Final = -2  # in place of a token: the request excludes every token

NOT_FINITE_ERROR: Final = NumericalError("the model produced logits that are not finite numbers").info()


class Choice:
    """One token for each of R rows."""

    def __init__(
        self,
        tokens: torch.Tensor,
        told: torch.Tensor,
        *,
        asking: abc.Mapping[int, int] | None = None,
        logprobs: abc.Sequence[torch.Tensor] = (),
        errors: abc.Mapping[int, ErrorInfo] | None = None,
        nothing_left: abc.Callable[[int], ErrorInfo] = lambda row: NOT_FINITE_ERROR,
    ) -> None:
        """`told` [R] int64: the ids in `tokens`, or codes below 0. Starts to copy `told` to the host.

        `asking`: for each row that wants log-probabilities, the number of alternatives. `logprobs` is what
        `RawLogprobs.of` returned for the tokens of these rows. `errors` has the errors of rows whose token is
        meaningless; `nothing_left(r)` says why row r has no token left.
        """
        self.tokens = tokens  # [R] int64, each inside the row, also where there is an error
        self._asking = asking or {}
        self._errors, self._nothing_left = errors or {}, nothing_left
        self._receipt = Receipt((told, *logprobs))

    def read(self) -> list[Sampled]:
        """One outcome for each row; waits for the device."""
        told, *told_of_asking = self._receipt.wait()
        chosen: list[int] = told.tolist()
        logprobs: dict[int, PositionLogprobs] = {}
        if self._asking:
            ids = [max(chosen[row], 0) for row in self._asking]
            told_entries = entries(list(self._asking.values()), ids, told_of_asking)
            logprobs = dict(zip(self._asking, told_entries, strict=True))
        return [self._outcome(row, token, logprobs.get(row)) for row, token in enumerate(chosen)]

    def _outcome(self, row: int, token: int, logprobs: PositionLogprobs | None) -> Sampled:
        if token == NOT_FINITE:
            return Sampled(-1, error=NOT_FINITE_ERROR)
        if row in self._errors:
            return Sampled(-1, error=self._errors[row])
        if token == NOTHING_LEFT:
            return Sampled(-1, error=self._nothing_left(row))
        return Sampled(token, logprobs)
