"""Pauses end when the time is over, and a success gives all of it back."""

import time

import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.wire.backoff import Backoff


def pause_for_ever(backoff: Backoff) -> None:
    while True:
        backoff.pause("no leader")


def test_what_failed_is_told_after_the_timeout() -> None:
    backoff = Backoff(0.2)
    started = time.monotonic()
    with pytest.raises(PipelineError, match=r"no leader \(tried for 0.2 s\)"):
        pause_for_ever(backoff)
    assert 0.2 <= time.monotonic() - started < 10


def test_a_success_gives_the_time_back() -> None:
    backoff = Backoff(0.05)
    backoff.pause("one")
    backoff.succeeded()
    backoff.pause("two")
    with pytest.raises(PipelineError, match="three"):
        backoff.pause("three")
