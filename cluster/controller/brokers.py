"""The lifecycle of a broker: registration, heartbeats, fencing, shutdown; producer id blocks.

    state                  event                                  next
    ---------------------------------------------------------------------------------------
    (none)                 RegisterBroker                         fenced, or active at once
    fenced                 heartbeat, has caught up               active
    active                 heartbeat wants_fence, or none         fenced
    active                 heartbeat wants_shut_down              in controlled shutdown, or fenced
                                                                  if it leads nothing
    in controlled          heartbeat: others can take more        the same; they have it
    shutdown               heartbeat: nothing is left to move,    fenced; its reply says that it
                           and all others know who leads          should shut down
    any                    RegisterBroker by a new incarnation    as from (none)
    any                    RegisterBroker by the same one         the same; the replicas in log
                                                                  directories that have failed
                                                                  leave their ISRs
    any                    UnregisterBroker                       (none)

A broker that is fenced leaves all ISRs and leads nothing, in the same entry of the log. A broker in
controlled shutdown hands over, with each heartbeat, what others can take, and gets nothing new. A
broker that becomes active may lead partitions without a leader. `broker_sessions` has the brokers
whose heartbeats are missing. The broker epoch is the log offset of a registration, so that it
grows.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from odradek.cluster.controller.broker_sessions import BrokerSession
from odradek.cluster.controller.commands import (
    AllocateProducerIds,
    BrokerHeartbeat,
    BrokerReply,
    HeartbeatReply,
    ProducerIdsReply,
    RegisterBroker,
    UnregisterBroker,
    UnregisteredReply,
)
from odradek.cluster.controller.elections import (
    ControlledShutdownChanges,
    elect_leaderless,
    hand_over_partitions,
    raise_leader_epochs,
    remove_from_isrs,
)
from odradek.cluster.controller.log_directories import directory_losses, replace_lost_replicas
from odradek.cluster.controller.state import ControllerResult, ControllerState, is_active
from odradek.cluster.metadata.features import SECURITY_VERSION
from odradek.cluster.metadata.image import BrokerImage, ConfigResourceType
from odradek.cluster.metadata.records import (
    BrokerChanged,
    BrokerUnregistered,
    ConfigChanged,
    DecoyKeyCreated,
    ProducerIdsAllocated,
    Record,
)
from odradek.protocol.errors import ApiError, ErrorCode

PRODUCER_ID_BLOCK_SIZE: Final = 1000
"""The size of a block as in KIP-730: so many ids a killed broker may leave unused."""
_PRODUCER_ID_MAX: Final = 2**63 - 1


def register_broker(
    state: ControllerState, command: RegisterBroker, now_ms: int = 0
) -> ControllerResult:
    """Register a broker.

    ApiError: INCONSISTENT_CLUSTER_ID; INVALID_REGISTRATION for an invalid id or listeners;
    DUPLICATE_BROKER_REGISTRATION while another incarnation of the broker is alive and not in
    controlled shutdown; UNSUPPORTED_VERSION if its release does not support a finalized feature.
    The same incarnation again, after a lost response, keeps its epoch and state.
    """
    image = state.image
    broker_id = command.broker_id
    if command.cluster_id and image.cluster_id and command.cluster_id != image.cluster_id:
        raise ApiError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"Broker {broker_id} belongs to cluster {command.cluster_id}, but this is cluster"
            f" {image.cluster_id}.",
        )
    _check_registration(command)
    before = image.brokers.get(broker_id)
    same = before
    if before is not None and before.incarnation_id != command.incarnation_id:
        _check_not_alive(state, before, now_ms)
        same = None
    _check_features(state, command)
    record = BrokerImage(
        broker_id=broker_id,
        broker_epoch=same.broker_epoch if same is not None else image.offset + 1,
        incarnation_id=command.incarnation_id,
        listeners=command.listeners,
        rack=command.rack,
        features=command.features,
        is_fenced=same.is_fenced if same is not None else command.starts_fenced,
        is_in_controlled_shutdown=same is not None and same.is_in_controlled_shutdown,
        log_dirs=command.log_dirs,
        log_dir_paths=command.log_dir_paths,
        offline_log_dirs=command.offline_log_dirs,
    )
    records: list[Record] = []
    if record != before:
        records.append(record)
    if same is None:
        losses = _predecessor_losses(state, command, before, record)
        records.extend(replace_lost_replicas(state, record, losses))
    elif command.offline_log_dirs != same.offline_log_dirs:
        records.extend(directory_losses(state, record))
    if command.decoy_key and not image.decoy_key and image.features.get(SECURITY_VERSION):
        records.append(DecoyKeyCreated(command.decoy_key))
    if command.starts_fenced:
        state.sessions.record_contact(broker_id, record.broker_epoch, now_ms)
    else:
        state.sessions.remove(broker_id)
    return ControllerResult(tuple(records), BrokerReply(record.broker_epoch))


def heartbeat(state: ControllerState, command: BrokerHeartbeat, now_ms: int) -> ControllerResult:
    """Record a broker's heartbeat, and change its state as it wants.

    ApiError(BROKER_ID_NOT_REGISTERED) or ApiError(STALE_BROKER_EPOCH) if it has to register first.
    """
    broker = check_broker_epoch(state, command.broker_id, command.broker_epoch)
    session = state.sessions.record_contact(broker.broker_id, broker.broker_epoch, now_ms)
    session.metadata_offset = max(session.metadata_offset, command.metadata_offset)
    next_state = _next_control_state(state, broker, session, command)
    records = _control_state_records(state, broker, next_state)
    if next_state.is_shutting_down and records:
        session.shutdown_offset = state.image.offset + 1
    return ControllerResult(
        tuple(records),
        HeartbeatReply(
            is_caught_up=command.metadata_offset >= broker.broker_epoch,
            is_fenced=next_state.is_fenced,
            is_in_controlled_shutdown=next_state.is_shutting_down,
            should_shut_down=next_state.should_shut_down,
            next_heartbeat_ms=state.broker_settings.broker_heartbeat_interval_ms,
        ),
    )


def unregister_broker(state: ControllerState, command: UnregisterBroker) -> ControllerResult:
    """Unregister a broker; others lead its partitions. ApiError: BROKER_ID_NOT_REGISTERED;
    INVALID_REQUEST for the last broker of the cluster.

    It stays in the replicas of partitions until these are reassigned.
    """
    broker_id = command.broker_id
    if broker_id not in state.image.brokers:
        raise _not_registered(broker_id)
    if len(state.image.brokers) == 1:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"Broker {broker_id} is the last one of the cluster."
        )
    state.sessions.remove(broker_id)
    records: list[Record] = [*remove_from_isrs(state, {broker_id}), BrokerUnregistered(broker_id)]
    if state.is_cordoned(broker_id):
        # It was drained to be removed. A later broker with its id is another one.
        records.append(
            ConfigChanged(ConfigResourceType.BROKER, str(broker_id), "cordoned.log.dirs", None)
        )
    return ControllerResult(tuple(records), UnregisteredReply(broker_id))


def fence_stale_brokers(state: ControllerState, now_ms: int) -> list[Record]:
    """Fence all brokers whose sessions have expired, in one go."""
    timeout_ms = state.broker_settings.broker_session_timeout_ms
    state.sessions.extend_after_pause(now_ms, timeout_ms=timeout_ms)
    stale = {}
    for broker_id in state.sessions.expired(now_ms, timeout_ms=timeout_ms):
        state.sessions.remove(broker_id)
        broker = state.image.brokers.get(broker_id)
        if broker is not None and not broker.is_fenced:
            stale[broker_id] = broker
    if not stale:
        return []
    return [
        *(BrokerChanged(id_, True, b.is_in_controlled_shutdown) for id_, b in stale.items()),
        *remove_from_isrs(state, stale.keys()),
    ]


def allocate_producer_ids(state: ControllerState, command: AllocateProducerIds) -> ControllerResult:
    """Allocate the next block of producer ids to a broker. No id is allocated twice."""
    check_broker_epoch(state, command.broker_id, command.broker_epoch)
    first = state.image.next_producer_id
    if first > _PRODUCER_ID_MAX - PRODUCER_ID_BLOCK_SIZE:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "All producer ids have been allocated.")
    return ControllerResult(
        records=(
            ProducerIdsAllocated(
                command.broker_id, command.broker_epoch, first + PRODUCER_ID_BLOCK_SIZE
            ),
        ),
        reply=ProducerIdsReply(first, PRODUCER_ID_BLOCK_SIZE),
    )


def check_broker_epoch(state: ControllerState, broker_id: int, broker_epoch: int) -> BrokerImage:
    """The broker of a request; ApiError if it is not registered, or has another epoch by now."""
    broker = state.image.brokers.get(broker_id)
    if broker is None:
        raise _not_registered(broker_id)
    if broker.broker_epoch != broker_epoch:
        raise ApiError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"Broker {broker_id} has registered again since epoch {broker_epoch}.",
        )
    return broker


def _not_registered(broker_id: int) -> ApiError:
    return ApiError(
        ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not currently registered"
    )


def _check_registration(command: RegisterBroker) -> None:
    names = [listener.name for listener in command.listeners]
    complaint = None
    if command.broker_id < 0:
        complaint = f"The broker id {command.broker_id} is not valid. It must be 0 or more."
    elif len(set(names)) != len(names):
        complaint = f"Broker {command.broker_id} has two listeners of one name: {', '.join(names)}"
    if complaint is not None:
        raise ApiError(ErrorCode.INVALID_REGISTRATION, complaint)


def _check_not_alive(state: ControllerState, before: BrokerImage, now_ms: int) -> None:
    """Two processes with one id would both lead. One in controlled shutdown may be replaced."""
    timeout_ms = state.broker_settings.broker_session_timeout_ms
    is_alive = state.sessions.is_alive(
        before.broker_id, before.broker_epoch, now_ms=now_ms, timeout_ms=timeout_ms
    )
    if is_alive and not before.is_in_controlled_shutdown:
        raise ApiError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"Another broker with the id {before.broker_id} is alive. Give this one its own id. If"
            f" it is the same broker after a restart, it can register {timeout_ms} ms after its"
            " last heartbeat.",
        )


def _check_features(state: ControllerState, command: RegisterBroker) -> None:
    if not command.features:
        return
    ranges = {feature.name: feature for feature in command.features}
    for name, level in state.image.features.items():
        found = ranges.get(name)
        if found is None or not found.min_level <= level <= found.max_level:
            low, high = (0, 0) if found is None else (found.min_level, found.max_level)
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                "Unable to register because the broker does not support finalized version"
                f" {level} of {name}. The broker wants a version between {low} and {high},"
                " inclusive.",
            )


def _predecessor_losses(
    state: ControllerState,
    command: RegisterBroker,
    before: BrokerImage | None,
    registered: BrokerImage,
) -> list[Record]:
    """The partition changes for a new incarnation: it may have lost records, so it does not lead,
    or, as a single node, leads in new epochs."""
    broker_id = command.broker_id
    only_this = frozenset((broker_id,))
    none: frozenset[int] = frozenset()
    previous = command.previous_broker_epoch
    is_unclean_shutdown = previous is not None and (
        before is None or before.broker_epoch != previous
    )
    known = set(before.log_dirs) if before is not None else set()
    is_erased = bool(known and command.log_dirs) and known.isdisjoint(command.log_dirs)
    was_active = before is not None and not before.is_fenced
    is_shutting_down = command.starts_fenced and was_active
    if was_active and not command.starts_fenced:
        return raise_leader_epochs(state, registered)
    if not (is_shutting_down or is_unclean_shutdown or is_erased):
        return []
    return remove_from_isrs(
        state,
        only_this if is_shutting_down else none,
        unclean_shutdown=only_this if is_unclean_shutdown else none,
        erased=only_this if is_erased else none,
    )


class _BrokerControlState(NamedTuple):
    """The state of a broker after a heartbeat."""

    is_fenced: bool
    is_shutting_down: bool = False
    should_shut_down: bool = False
    released: tuple[Record, ...] = ()
    """The records by which others take over during controlled shutdown."""


def _next_control_state(
    state: ControllerState, broker: BrokerImage, session: BrokerSession, command: BrokerHeartbeat
) -> _BrokerControlState:
    """The next state, by the table at the top of the module."""
    if broker.is_in_controlled_shutdown or (command.wants_shut_down and not broker.is_fenced):
        if broker.is_fenced:
            return _BrokerControlState(is_fenced=True, is_shutting_down=True, should_shut_down=True)
        leads = bool(state.index.led_by(broker.broker_id))
        changes = hand_over_partitions(state, broker.broker_id)
        can_shut_down = _can_shut_down(state, broker, session, changes, leads=leads)
        released = () if can_shut_down else tuple(changes.records)
        return _BrokerControlState(
            can_shut_down, is_shutting_down=True, should_shut_down=can_shut_down, released=released
        )
    if command.wants_shut_down:
        return _BrokerControlState(is_fenced=True, should_shut_down=True)
    if broker.is_fenced:
        is_caught_up = command.metadata_offset >= broker.broker_epoch
        return _BrokerControlState(is_fenced=command.wants_fence or not is_caught_up)
    return _BrokerControlState(is_fenced=command.wants_fence)


def _control_state_records(
    state: ControllerState, before: BrokerImage, after: _BrokerControlState
) -> list[Record]:
    """The records that change a broker's state, and those for its partitions."""
    if (before.is_fenced, before.is_in_controlled_shutdown) == (
        after.is_fenced,
        after.is_shutting_down,
    ):
        return list(after.released)
    broker_id = before.broker_id
    partitions: Iterable[Record]
    if after.is_fenced:
        partitions = remove_from_isrs(state, {broker_id})
    elif after.is_shutting_down:
        partitions = after.released
    else:
        partitions = elect_leaderless(state, broker_id)
    return [BrokerChanged(broker_id, after.is_fenced, after.is_shutting_down), *partitions]


def _can_shut_down(
    state: ControllerState,
    broker: BrokerImage,
    session: BrokerSession,
    changes: ControlledShutdownChanges,
    *,
    leads: bool,
) -> bool:
    """Whether a broker in controlled shutdown may stop: the others can take over nothing more, and
    all active ones know the new leaders. Otherwise they would send clients to it.
    """
    if changes.is_waiting:
        return False
    if not broker.is_in_controlled_shutdown:
        return not leads
    if changes.records:
        return False
    if session.shutdown_offset is None:
        # A previous controller has begun it: what it did is in the log by now.
        session.shutdown_offset = state.image.offset
    others = [other.broker_id for other in state.registered_brokers() if is_active(other)]
    return state.sessions.have_all_applied(others, session.shutdown_offset)
