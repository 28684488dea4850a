"""Settings that cannot work are refused at the start."""

import pytest

from odradek.cluster.raft.settings import RaftSettings


def test_an_election_timeout_must_hold_two_heartbeats() -> None:
    RaftSettings(election_timeout_ms=200, heartbeat_ms=100)
    with pytest.raises(ValueError, match="heartbeats"):
        RaftSettings(election_timeout_ms=199, heartbeat_ms=100)
    with pytest.raises(ValueError, match="heartbeats"):
        RaftSettings(heartbeat_ms=0)


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        RaftSettings(window_requests_max=0)
