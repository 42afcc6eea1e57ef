"""Why an application failed, in one line."""

from __future__ import annotations

import pytest

from serve_app.deployments.rollout.cluster import reason

TRACE = 'Deploying failed:\nTraceback (most recent call last):\n  File "x.py", line 1\n{}\n'


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (TRACE.format("serve_app.models.errors.ModelLoadError: no folder '/x'"), "no folder '/x'"),
        (TRACE.format("MemoryError: 5 GiB"), "MemoryError: 5 GiB"),
        ("Still\nwaiting", "Still\nwaiting"),
    ],
)
def test_a_reason_is_the_last_error_without_the_class_of_our_own(said: str, words: str) -> None:
    assert reason({"message": "", "deployments": {"Model": {"message": said}}}) == words
