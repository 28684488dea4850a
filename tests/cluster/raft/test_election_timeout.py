"""Election timeouts by role."""

from odradek.cluster.raft.election_timeout import ElectionTimeout
from odradek.cluster.raft.ready import Role
from odradek.cluster.raft.settings import RaftSettings

SETTINGS = RaftSettings(election_timeout_ms=500, heartbeat_ms=100)


def wait_ms(
    *,
    jitter_ms: int = 250,
    role: Role = Role.FOLLOWER,
    can_campaign: bool = True,
    is_sole_voter: bool = False,
    has_leader: bool = True,
) -> int:
    timeout = ElectionTimeout(SETTINGS, lambda: jitter_ms, 0)
    deadline_ms = timeout.deadline_ms(
        1_000,
        role=role,
        can_campaign=can_campaign,
        is_sole_voter=is_sole_voter,
        has_leader=has_leader,
    )
    return deadline_ms - 1_000


def test_a_voter_waits_an_election_timeout_and_its_jitter() -> None:
    """5.2: "election timeouts are chosen randomly from a fixed interval"."""
    assert wait_ms() == 750
    assert wait_ms(role=Role.CANDIDATE, has_leader=False) == 750


def test_jitter_is_limited_to_the_election_timeout() -> None:
    assert wait_ms(jitter_ms=-9) == 500
    assert wait_ms(jitter_ms=10_000) == 1_000


def test_a_pre_vote_is_repeated_after_one_to_two_heartbeats() -> None:
    waits = [wait_ms(jitter_ms=jitter, role=Role.PRE_CANDIDATE) for jitter in (0, 250, 500)]
    assert waits == [100, 150, 200]


def test_the_only_voter_does_not_wait() -> None:
    assert wait_ms(is_sole_voter=True, has_leader=False) == 0
    assert wait_ms(is_sole_voter=True, has_leader=True) == 750
    assert wait_ms(is_sole_voter=True, has_leader=False, role=Role.CANDIDATE) == 750


def test_a_member_without_a_vote_looks_for_a_leader_after_two_heartbeats() -> None:
    assert wait_ms(can_campaign=False) == 500
    assert wait_ms(can_campaign=False, has_leader=False) == 200
    assert wait_ms(can_campaign=False, has_leader=False, is_sole_voter=True) == 200


def test_contact_is_recent_for_the_least_election_timeout() -> None:
    timeout = ElectionTimeout(SETTINGS, lambda: 250, 0)
    timeout.last_contact_ms = 1_000
    assert timeout.has_recent_contact(1_499)
    assert not timeout.has_recent_contact(1_500)
