"""Messages that wait until the state is durable."""

import pytest

from odradek.cluster.raft.messages import Entry, VoteResponse
from odradek.cluster.raft.outbox import Outbox
from odradek.cluster.raft.ready import HardState, Ready

DURABLE = HardState(3, 1, 5)
ANSWER = VoteResponse(1, 2, 4, True)


def test_durable_messages_are_sent_at_once_and_others_after_the_next_sync() -> None:
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


def test_messages_that_wait_need_no_second_sync() -> None:
    outbox = Outbox(DURABLE)
    outbox.send(ANSWER, is_durable=False)
    ready = outbox.persist(DURABLE, (), None)
    assert ready is not None
    assert not ready.must_persist
    assert ready.messages == (ANSWER,)


def test_a_commit_index_alone_causes_no_sync() -> None:
    outbox = Outbox(DURABLE)
    assert outbox.persist(HardState(3, 1, 9), (), None) is None
    ready = outbox.persist(HardState(3, 1, 9), (Entry(10, 3, b"x"),), None)
    assert ready is not None
    assert ready.hard_state == HardState(3, 1, 9)


def test_waiting_messages_of_an_earlier_term_are_dropped() -> None:
    outbox = Outbox(DURABLE)
    outbox.send(ANSWER, is_durable=False)
    outbox.discard_pending()
    assert outbox.persist(DURABLE, (), None) is None


def test_persisting_another_ready_than_the_outstanding_one_is_an_assertion_error() -> None:
    outbox = Outbox(DURABLE)
    ready = outbox.persist(HardState(4, 2, 5), (), None)
    assert ready is not None
    with pytest.raises(AssertionError):
        outbox.persisted(Ready(hard_state=HardState(4, 2, 5)))
