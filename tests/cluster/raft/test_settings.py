"""Invalid settings are errors."""

import pytest

from odradek.cluster.raft.settings import RaftSettings


def test_an_election_timeout_must_contain_two_heartbeats() -> None:
    RaftSettings(election_timeout_ms=200, heartbeat_ms=100)
    with pytest.raises(ValueError, match="heartbeats"):
        RaftSettings(election_timeout_ms=199, heartbeat_ms=100)
    with pytest.raises(ValueError, match="heartbeats"):
        RaftSettings(heartbeat_ms=0)


def test_a_limit_of_zero_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        RaftSettings(window_requests_max=0)
