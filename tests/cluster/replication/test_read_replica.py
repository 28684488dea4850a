"""The preferred read replica of a consumer (KIP-392)."""

from collections.abc import Mapping

import msgspec
import pytest

from odradek.cluster.metadata.image import BrokerImage, PartitionImage
from odradek.cluster.replication.read_replica import NO_REPLICA, preferred_read_replica

BROKERS = {
    1: BrokerImage(1, 10, rack="east"),
    2: BrokerImage(2, 11, rack="west"),
    3: BrokerImage(3, 12, rack="west"),
    4: BrokerImage(4, 13, rack=None),
}
STATE = PartitionImage((1, 2, 3, 4), (1, 2, 3, 4), 1, 5)


def chosen(
    rack: str,
    state: PartitionImage = STATE,
    brokers: Mapping[int, BrokerImage] = BROKERS,
    *,
    partition: int = 0,
    unreachable: int = 0,
) -> int:
    return preferred_read_replica(
        state,
        brokers,
        rack,
        partition=partition,
        is_reachable=lambda broker: broker.broker_id != unreachable,
    )


def test_the_leader_serves_its_own_rack_and_racks_without_replicas() -> None:
    assert chosen("east") == NO_REPLICA
    assert chosen("north") == NO_REPLICA
    assert chosen("west", msgspec.structs.replace(STATE, leader=3)) == NO_REPLICA


def test_the_partitions_are_divided_among_the_replicas_of_a_rack() -> None:
    assert [chosen("west", partition=number) for number in range(4)] == [2, 3, 2, 3]


def test_a_broker_without_a_rack_is_not_preferred() -> None:
    state = msgspec.structs.replace(STATE, leader=4)
    assert chosen("", state) == NO_REPLICA


@pytest.mark.parametrize("change", [{"is_fenced": True}, {"is_in_controlled_shutdown": True}])
def test_a_broker_that_cannot_serve_is_not_preferred(change: dict[str, bool]) -> None:
    brokers = {**BROKERS, 2: msgspec.structs.replace(BROKERS[2], **change)}
    assert chosen("west", brokers=brokers) == 3
    assert chosen("west", msgspec.structs.replace(STATE, in_sync_replicas=(1, 3))) == 3
    assert chosen("west", unreachable=2) == 3
    del brokers[3]
    assert chosen("west", brokers=brokers) == NO_REPLICA
