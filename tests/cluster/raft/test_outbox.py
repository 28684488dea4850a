"""What waits for the disk, and for how long."""

import pytest

from odradek.cluster.raft.messages import Entry, VoteResponse
from odradek.cluster.raft.outbox import Outbox
from odradek.cluster.raft.ready import HardState, Ready

DURABLE = HardState(3, 1, 5)
ANSWER = VoteResponse(1, 2, 4, True)


def test_what_is_durable_leaves_at_once_and_the_rest_with_the_next_sync() -> None:
    outbox = Outbox(DURABLE)
    other = VoteResponse(1, 3, 3, False)
    outbox.send(ANSWER, is_durable=False)
    outbox.send(other, is_durable=True)
    assert outbox.take_sendable() == (other,)
    assert outbox.take_sendable() == ()
    ready = outbox.persist(HardState(4, 2, 5), (), None)
    assert ready == Ready(hard_state=HardState(4, 2, 5), messages=(ANSWER,))


def test_one_ready_is_persisted_at_a_time() -> None:
    outbox = Outbox(DURABLE)
    ready = outbox.persist(HardState(4, 2, 5), (), None)
    assert ready is not None
    outbox.send(ANSWER, is_durable=False)
    assert outbox.persist(HardState(5, 2, 5), (), None) is None
    outbox.persisted(ready)
    assert outbox.durable == HardState(4, 2, 5)
    later = outbox.persist(HardState(5, 2, 5), (), None)
    assert later == Ready(hard_state=HardState(5, 2, 5), messages=(ANSWER,))


def test_what_waited_for_a_sync_that_is_done_needs_no_other() -> None:
    outbox = Outbox(DURABLE)
    outbox.send(ANSWER, is_durable=False)
    ready = outbox.persist(DURABLE, (), None)
    assert ready is not None
    assert not ready.must_persist
    assert ready.messages == (ANSWER,)


def test_a_commit_index_goes_along_with_entries_but_is_not_worth_a_sync() -> None:
    outbox = Outbox(DURABLE)
    assert outbox.persist(HardState(3, 1, 9), (), None) is None
    ready = outbox.persist(HardState(3, 1, 9), (Entry(10, 3, b"x"),), None)
    assert ready is not None
    assert ready.hard_state == HardState(3, 1, 9)


def test_answers_of_a_term_that_is_over_are_forgotten() -> None:
    outbox = Outbox(DURABLE)
    outbox.send(ANSWER, is_durable=False)
    outbox.discard_pending()
    assert outbox.persist(DURABLE, (), None) is None


def test_another_ready_than_the_outstanding_one_is_a_drivers_fault() -> None:
    outbox = Outbox(DURABLE)
    ready = outbox.persist(HardState(4, 2, 5), (), None)
    assert ready is not None
    with pytest.raises(AssertionError):
        outbox.persisted(Ready(hard_state=HardState(4, 2, 5)))
