"""The sessions of brokers: heartbeats, suspicion, expiry, and pauses of the controller.

`T` is the session timeout of these tests, in milliseconds.
"""

from odradek.cluster.controller.broker_sessions import BrokerHeartbeatTracker

T = 1000


def table(*brokers: int, now_ms: int = 0) -> BrokerHeartbeatTracker:
    sessions = BrokerHeartbeatTracker()
    sessions.reset([(broker, 10 + broker) for broker in brokers], now_ms)
    return sessions


def test_a_session_lasts_for_the_timeout_and_not_longer() -> None:
    sessions = table(1)
    assert sessions.expired(T - 1, timeout_ms=T) == []
    assert sessions.is_alive(1, 11, now_ms=T - 1, timeout_ms=T)
    assert sessions.expired(T, timeout_ms=T) == [1]
    assert not sessions.is_alive(1, 11, now_ms=T, timeout_ms=T)


def test_a_heartbeat_extends_a_session() -> None:
    sessions = table(1, 2)
    sessions.record_contact(2, 12, 600)
    assert sessions.expired(1200, timeout_ms=T) == [1]
    assert sessions.expired(1600, timeout_ms=T) == [1, 2]


def test_an_older_heartbeat_does_not_shorten_a_session() -> None:
    sessions = table(1, now_ms=500)
    sessions.record_contact(1, 11, 100)
    assert sessions.expired(1499, timeout_ms=T) == []


def test_a_session_is_of_one_registration() -> None:
    sessions = table(1)
    assert not sessions.is_alive(1, 99, now_ms=1, timeout_ms=T)
    sessions.record_contact(1, 11, 1).metadata_offset = 7
    assert sessions.record_contact(1, 11, 2).metadata_offset == 7
    assert sessions.record_contact(1, 20, 3).metadata_offset == -1
    assert sessions.is_alive(1, 20, now_ms=4, timeout_ms=T)
    assert not sessions.is_alive(1, 11, now_ms=4, timeout_ms=T)


def test_a_suspected_broker_expires_after_half_a_timeout_unless_it_sends_a_heartbeat() -> None:
    sessions = table(1, 2, 3)
    for broker in (1, 2, 7):
        sessions.suspect(broker, since_ms=300, timeout_ms=T)
    assert sessions.expired(799, timeout_ms=T) == []
    assert sessions.next_check_ms(T) is not None
    sessions.record_contact(2, 12, 700)
    assert sessions.expired(800, timeout_ms=T) == [1]
    assert sessions.expired(1699, timeout_ms=T) == [1, 3]
    assert sessions.expired(1700, timeout_ms=T) == [1, 2, 3]


def test_suspicion_never_extends_a_session() -> None:
    sessions = table(1)
    sessions.suspect(1, since_ms=900, timeout_ms=T)
    assert sessions.expired(T, timeout_ms=T) == [1]


def test_a_removed_session_never_expires() -> None:
    sessions = table(1)
    sessions.remove(1)
    sessions.remove(7)
    assert sessions.expired(10 * T, timeout_ms=T) == []
    assert sessions.next_check_ms(T) is None


def test_a_new_controller_gives_every_broker_a_whole_timeout() -> None:
    sessions = table(1)
    sessions.reset([(1, 11), (2, 12)], 900)
    assert sessions.expired(1899, timeout_ms=T) == []
    assert sessions.expired(1900, timeout_ms=T) == [1, 2]


def test_a_pause_of_the_controller_extends_all_sessions() -> None:
    sessions = table(1, 2)
    sessions.record_contact(1, 11, 3000)
    sessions.extend_after_pause(3000, timeout_ms=T)
    assert sessions.expired(3000, timeout_ms=T) == []
    for now_ms in range(3250, 4000, 250):
        sessions.extend_after_pause(now_ms, timeout_ms=T)
        assert sessions.expired(now_ms, timeout_ms=T) == []
    sessions.extend_after_pause(4000, timeout_ms=T)
    assert sessions.expired(4000, timeout_ms=T) == [1, 2], "at most one timeout from the pause on"


def test_checks_in_time_extend_no_session() -> None:
    sessions = table(1)
    for now_ms in range(0, T, 250):
        sessions.extend_after_pause(now_ms, timeout_ms=T)
    sessions.extend_after_pause(T, timeout_ms=T)
    assert sessions.expired(T, timeout_ms=T) == [1]


def test_the_next_check_is_due_before_the_first_session_expires() -> None:
    sessions = table(1)
    assert sessions.next_check_ms(T) == 250
    sessions.extend_after_pause(900, timeout_ms=4 * T)
    assert sessions.next_check_ms(T) == 1000
    assert BrokerHeartbeatTracker().next_check_ms(T) is None
    assert BrokerHeartbeatTracker.check_interval_ms(1) == 1


def test_only_brokers_with_sessions_count_as_having_applied_the_metadata() -> None:
    sessions = table(1, 2)
    sessions.record_contact(1, 11, 0).metadata_offset = 5
    assert not sessions.have_all_applied([1, 2], 5)
    sessions.record_contact(2, 12, 0).metadata_offset = 6
    assert sessions.have_all_applied([1, 2], 5)
    assert not sessions.have_all_applied([1, 2], 6)
    assert sessions.have_all_applied([2, 99], 6), "99 sends no heartbeats"
