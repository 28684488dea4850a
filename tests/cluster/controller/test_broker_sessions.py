"""Sessions: who was heard of, for how long that counts, and what a sleeping controller must not do.

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
    assert sessions.expired(T - 1, T) == []
    assert sessions.is_alive(1, 11, T - 1, T)
    assert sessions.expired(T, T) == [1]
    assert not sessions.is_alive(1, 11, T, T)


def test_being_heard_of_prolongs_a_session() -> None:
    sessions = table(1, 2)
    sessions.record_contact(2, 12, 600)
    assert sessions.expired(1200, T) == [1]
    assert sessions.expired(1600, T) == [1, 2]


def test_what_was_heard_never_counts_backwards() -> None:
    sessions = table(1, now_ms=500)
    sessions.record_contact(1, 11, 100)
    assert sessions.expired(1499, T) == []


def test_a_session_is_of_one_registration() -> None:
    sessions = table(1)
    assert not sessions.is_alive(1, 99, 1, T)
    sessions.record_contact(1, 11, 1).metadata_offset = 7
    assert sessions.record_contact(1, 11, 2).metadata_offset == 7
    assert sessions.record_contact(1, 20, 3).metadata_offset == -1
    assert sessions.is_alive(1, 20, 4, T)
    assert not sessions.is_alive(1, 11, 4, T)


def test_a_suspect_has_half_a_timeout_from_then_and_is_cleared_by_being_heard_of() -> None:
    sessions = table(1, 2, 3)
    for broker in (1, 2, 7):
        sessions.suspect(broker, 300, T)
    assert sessions.expired(799, T) == []
    assert sessions.next_check_ms(T) is not None
    sessions.record_contact(2, 12, 700)
    assert sessions.expired(800, T) == [1]
    assert sessions.expired(1699, T) == [1, 3]
    assert sessions.expired(1700, T) == [1, 2, 3]


def test_suspicion_never_prolongs_a_session() -> None:
    sessions = table(1)
    sessions.suspect(1, 900, T)
    assert sessions.expired(T, T) == [1]


def test_nobody_waits_for_a_broker_that_was_dropped() -> None:
    sessions = table(1)
    sessions.remove(1)
    sessions.remove(7)
    assert sessions.expired(10 * T, T) == []
    assert sessions.next_check_ms(T) is None


def test_a_new_controller_gives_everybody_a_whole_timeout() -> None:
    sessions = table(1)
    sessions.reset([(1, 11), (2, 12)], 900)
    assert sessions.expired(1899, T) == []
    assert sessions.expired(1900, T) == [1, 2]


def test_a_controller_that_slept_does_not_blame_the_brokers_for_it() -> None:
    sessions = table(1, 2)
    sessions.record_contact(1, 11, 3000)
    sessions.forgive_pause(3000, T)
    assert sessions.expired(3000, T) == []
    for now_ms in range(3250, 4000, 250):
        sessions.forgive_pause(now_ms, T)
        assert sessions.expired(now_ms, T) == []
    sessions.forgive_pause(4000, T)
    assert sessions.expired(4000, T) == [1, 2], "nobody got more than a timeout from waking on"


def test_a_controller_that_looks_as_often_as_it_should_prolongs_nothing() -> None:
    sessions = table(1)
    for now_ms in range(0, T, 250):
        sessions.forgive_pause(now_ms, T)
    sessions.forgive_pause(T, T)
    assert sessions.expired(T, T) == [1]


def test_the_next_check_comes_before_the_first_session_ends_and_often_enough() -> None:
    sessions = table(1)
    assert sessions.next_check_ms(T) == 250
    sessions.forgive_pause(900, 4 * T)
    assert sessions.next_check_ms(T) == 1000
    assert BrokerHeartbeatTracker().next_check_ms(T) is None
    assert BrokerHeartbeatTracker.check_interval_ms(1) == 1


def test_what_all_have_reached_is_asked_of_those_who_speak() -> None:
    sessions = table(1, 2)
    sessions.record_contact(1, 11, 0).metadata_offset = 5
    assert not sessions.have_all_applied([1, 2], 5)
    sessions.record_contact(2, 12, 0).metadata_offset = 6
    assert sessions.have_all_applied([1, 2], 5)
    assert not sessions.have_all_applied([1, 2], 6)
    assert sessions.have_all_applied([2, 99], 6), "99 sends no heartbeats"
