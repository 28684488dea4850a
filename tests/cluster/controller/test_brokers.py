"""Registration and producer ids."""

import pytest

from cluster.controller.commands import (
    AllocateProducerIds,
    BrokerReply,
    ProducerIdsReply,
    RegisterBroker,
)
from cluster.metadata.image import Listener
from cluster.metadata.records import ProducerIdsAllocated
from protocol.errors import ApiError, ErrorCode
from tests.support.controller_room import FEATURES, ControllerRoom, topic_id


def test_a_registered_broker_is_what_it_said() -> None:
    broker = ControllerRoom(brokers=2).image.brokers[1]
    assert broker.listeners == (Listener("PLAINTEXT", "host-1", 9093),)
    assert (broker.rack, broker.features) == ("rack-1", FEATURES)
    assert not broker.is_fenced


def test_a_broker_that_registers_again_replaces_itself_with_a_greater_epoch() -> None:
    room = ControllerRoom()
    before = room.image.brokers[0]
    reply = room.do(RegisterBroker(0, topic_id(5), "cluster"))
    assert isinstance(reply, BrokerReply)
    after = room.image.brokers[0]
    assert after.broker_epoch == reply.broker_epoch > before.broker_epoch
    assert (after.incarnation_id, after.rack, after.listeners) == (topic_id(5), None, ())


def test_a_broker_of_another_cluster_is_refused() -> None:
    room = ControllerRoom()
    with pytest.raises(ApiError) as caught:
        room.do(RegisterBroker(1, topic_id(5), "other"))
    assert caught.value.code is ErrorCode.INCONSISTENT_CLUSTER_ID
    assert "other" in caught.value.message
    assert 1 not in room.image.brokers


def allocate(room: ControllerRoom, broker: int, epoch: int | None = None) -> tuple[int, int]:
    if epoch is None:
        epoch = room.image.brokers[broker].broker_epoch
    reply = room.do(AllocateProducerIds(broker, epoch))
    assert isinstance(reply, ProducerIdsReply)
    return reply.first, reply.count


def test_no_producer_id_is_given_twice() -> None:
    room = ControllerRoom(brokers=2)
    assert [allocate(room, broker) for broker in (0, 1, 0)] == [
        (0, 1000),
        (1000, 1000),
        (2000, 1000),
    ]
    assert room.restarted().next_producer_id == 3000


@pytest.mark.parametrize(
    ("broker", "epoch", "code"),
    [(7, 1, ErrorCode.BROKER_ID_NOT_REGISTERED), (0, 1, ErrorCode.STALE_BROKER_EPOCH)],
)
def test_only_a_registered_broker_gets_producer_ids(
    broker: int, epoch: int, code: ErrorCode
) -> None:
    with pytest.raises(ApiError) as caught:
        allocate(ControllerRoom(), broker, epoch)
    assert caught.value.code is code


def test_producer_ids_end_before_they_overflow() -> None:
    room = ControllerRoom()
    room.write(ProducerIdsAllocated(0, 2, 2**63 - 1000))
    with pytest.raises(ApiError) as caught:
        allocate(room, 0)
    assert caught.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
