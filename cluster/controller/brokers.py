"""Brokers as the controller knows them: registration, and blocks of producer ids.

Heartbeats, fencing and leader election come with a second broker; a broker that registers is active
at once.
"""

from typing import Final

from cluster.controller.commands import (
    AllocateProducerIds,
    BrokerReply,
    ProducerIdsReply,
    RegisterBroker,
)
from cluster.controller.state import ControllerResult, ControllerState
from cluster.metadata.records import BrokerRegistered, ProducerIdsAllocated
from protocol.errors import ApiError, ErrorCode

PRODUCER_IDS_OF_A_BLOCK: Final = 1000
"""KIP-730's size of a block: what a broker that is killed may leave unused."""
_PRODUCER_ID_MAX: Final = 2**63 - 1


def register_broker(state: ControllerState, command: RegisterBroker) -> ControllerResult:
    """Take a broker in. Its epoch is the place of the registration in the log, so that it grows."""
    image = state.image
    if command.cluster_id and image.cluster_id and command.cluster_id != image.cluster_id:
        raise ApiError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"broker {command.broker_id} belongs to the cluster {command.cluster_id}, this one is"
            f" {image.cluster_id}",
        )
    broker_epoch = image.offset + 1
    record = BrokerRegistered(
        broker_id=command.broker_id,
        broker_epoch=broker_epoch,
        incarnation_id=command.incarnation_id,
        listeners=command.listeners,
        rack=command.rack,
        features=command.features,
    )
    return ControllerResult(records=(record,), reply=BrokerReply(broker_epoch))


def allocate_producer_ids(state: ControllerState, command: AllocateProducerIds) -> ControllerResult:
    """Give a broker the next block of producer ids. No id is ever given twice."""
    broker = state.image.brokers.get(command.broker_id)
    if broker is None:
        raise ApiError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"there is no broker {command.broker_id}"
        )
    if broker.broker_epoch != command.broker_epoch:
        raise ApiError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"broker {command.broker_id} has registered anew since epoch {command.broker_epoch}",
        )
    first = state.image.next_producer_id
    if first > _PRODUCER_ID_MAX - PRODUCER_IDS_OF_A_BLOCK:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "all producer ids have been given out")
    return ControllerResult(
        records=(
            ProducerIdsAllocated(
                command.broker_id, command.broker_epoch, first + PRODUCER_IDS_OF_A_BLOCK
            ),
        ),
        reply=ProducerIdsReply(first, PRODUCER_IDS_OF_A_BLOCK),
    )
