"""Arrays that go to a device together."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from serve_app.engine import transfer
from serve_app.engine.transfer import Array, Parcel


def test_a_parcel_goes_in_one_copy_at_the_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[int] = []
    right = transfer.send

    def send(device: torch.device, *arrays: Array) -> list[torch.Tensor]:
        copies.append(len(arrays))
        return right(device, *arrays)

    monkeypatch.setattr(transfer, "send", send)
    parcel = Parcel(torch.device("cpu"))
    first, second = parcel.add(np.array([3, 1])), parcel.add(np.array([0.5]))
    assert not copies
    assert second().tolist() == [0.5]
    assert first().tolist() == [3, 1]
    assert copies == [2]
    with pytest.raises(RuntimeError, match="the parcel is sent"):
        parcel.add(np.array([2]))
