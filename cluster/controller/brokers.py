"""The life of a broker: registration, heartbeats, fencing, shutdown; and blocks of producer ids.

    state                  event                                  next
    ---------------------------------------------------------------------------------------
    (none)                 RegisterBroker                         fenced, or active at once
    fenced                 heartbeat, has caught up               active
    active                 heartbeat wants_fence, or silence      fenced
    active                 heartbeat wants_shut_down              in controlled shutdown, or fenced
                                                                  if it leads nothing
    in controlled          heartbeat: others can take more        the same; they have it
    shutdown               heartbeat: nothing is left to move,    fenced; its reply says that it
                           and all others know who leads          should shut down
    any                    RegisterBroker by a new incarnation    as from (none)
    any                    UnregisterBroker                       (none)

Who is fenced loses the lead and its places in ISRs in the same entry of the log; who is in
controlled shutdown gives up, heartbeat by heartbeat, what others can take, and gets nothing new;
who becomes active may lead what nobody leads. Silence is the session table's matter, see
`sessions`. The broker epoch is the place in the log at which a registration was decided, so that it
grows.
"""

from collections.abc import Iterable, Set
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
    remove_from_isrs,
)
from odradek.cluster.controller.state import ControllerResult, ControllerState
from odradek.cluster.metadata.image import BrokerImage, ConfigResourceType
from odradek.cluster.metadata.records import (
    BrokerChanged,
    BrokerRegistered,
    BrokerUnregistered,
    ConfigChanged,
    ProducerIdsAllocated,
    Record,
)
from odradek.protocol.errors import ApiError, ErrorCode

PRODUCER_ID_BLOCK_SIZE: Final = 1000
"""KIP-730's size of a block: what a broker that is killed may leave unused."""
_PRODUCER_ID_MAX: Final = 2**63 - 1


def register_broker(
    state: ControllerState, command: RegisterBroker, now_ms: int = 0
) -> ControllerResult:
    """Take a broker in.

    ApiError: INCONSISTENT_CLUSTER_ID; INVALID_REGISTRATION for an id or listeners that cannot be;
    DUPLICATE_BROKER_REGISTRATION while another incarnation of the broker is alive and does not
    leave; UNSUPPORTED_VERSION if its release does not understand a finalised feature. The same
    incarnation again, its answer lost, keeps its epoch and state.
    """
    image = state.image
    broker_id = command.broker_id
    if command.cluster_id and image.cluster_id and command.cluster_id != image.cluster_id:
        raise ApiError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"broker {broker_id} belongs to the cluster {command.cluster_id}, this one is"
            f" {image.cluster_id}",
        )
    _check_registration(command)
    before = image.brokers.get(broker_id)
    same = before
    if before is not None and before.incarnation_id != command.incarnation_id:
        _check_not_alive(state, before, now_ms)
        same = None
    _check_features(state, command)
    record = BrokerRegistered(
        broker_id=broker_id,
        broker_epoch=same.broker_epoch if same is not None else image.offset + 1,
        incarnation_id=command.incarnation_id,
        listeners=command.listeners,
        rack=command.rack,
        features=command.features,
        is_fenced=same.is_fenced if same is not None else command.starts_fenced,
        is_in_controlled_shutdown=same is not None and same.is_in_controlled_shutdown,
        log_dirs=command.log_dirs,
    )
    records: list[Record] = []
    if record.image() != before:
        records.append(record)
    if same is None:
        records.extend(_predecessor_losses(state, command, before))
    if command.starts_fenced:
        state.sessions.record_contact(broker_id, record.broker_epoch, now_ms)
    else:
        state.sessions.remove(broker_id)
    return ControllerResult(tuple(records), BrokerReply(record.broker_epoch))


def heartbeat(state: ControllerState, command: BrokerHeartbeat, now_ms: int) -> ControllerResult:
    """Note that a broker is alive, and what follows from what it wants.

    ApiError(BROKER_ID_NOT_REGISTERED) or ApiError(STALE_BROKER_EPOCH) if it has to register
    (anew) before anything else.
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
    """Forget a broker; what it leads goes to others. ApiError: BROKER_ID_NOT_REGISTERED;
    INVALID_REQUEST for the last one, which would leave a cluster that nobody can use.

    Its places among the replicas of partitions stay until they are reassigned.
    """
    broker_id = command.broker_id
    if broker_id not in state.image.brokers:
        raise _not_registered(broker_id)
    if len(state.image.brokers) == 1:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"broker {broker_id} is the only one: it cannot be taken out"
        )
    state.sessions.remove(broker_id)
    records: list[Record] = [*remove_from_isrs(state, {broker_id}), BrokerUnregistered(broker_id)]
    if state.is_cordoned(broker_id):
        # It was drained to be taken out; whoever comes next under its id is another.
        records.append(
            ConfigChanged(ConfigResourceType.BROKER, str(broker_id), "cordoned.log.dirs", None)
        )
    return ControllerResult(tuple(records), UnregisteredReply(broker_id))


def fence_stale_brokers(state: ControllerState, now_ms: int) -> list[Record]:
    """Fence all brokers whose sessions have expired, in one go."""
    timeout_ms = state.broker_settings.broker_session_timeout_ms
    state.sessions.forgive_pause(now_ms, timeout_ms)
    stale = set()
    for broker_id in state.sessions.expired(now_ms, timeout_ms):
        state.sessions.remove(broker_id)
        broker = state.image.brokers.get(broker_id)
        if broker is not None and not broker.is_fenced:
            stale.add(broker_id)
    return _fence(state, stale) if stale else []


def allocate_producer_ids(state: ControllerState, command: AllocateProducerIds) -> ControllerResult:
    """Give a broker the next block of producer ids. No id is ever given twice."""
    check_broker_epoch(state, command.broker_id, command.broker_epoch)
    first = state.image.next_producer_id
    if first > _PRODUCER_ID_MAX - PRODUCER_ID_BLOCK_SIZE:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "all producer ids have been given out")
    return ControllerResult(
        records=(
            ProducerIdsAllocated(
                command.broker_id, command.broker_epoch, first + PRODUCER_ID_BLOCK_SIZE
            ),
        ),
        reply=ProducerIdsReply(first, PRODUCER_ID_BLOCK_SIZE),
    )


def check_broker_epoch(state: ControllerState, broker_id: int, broker_epoch: int) -> BrokerImage:
    """The broker that speaks; ApiError if it is not registered, or was registered anew since."""
    broker = state.image.brokers.get(broker_id)
    if broker is None:
        raise _not_registered(broker_id)
    if broker.broker_epoch != broker_epoch:
        raise ApiError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"broker {broker_id} has registered anew since epoch {broker_epoch}",
        )
    return broker


def _not_registered(broker_id: int) -> ApiError:
    return ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"there is no broker {broker_id}")


def _check_registration(command: RegisterBroker) -> None:
    names = [listener.name for listener in command.listeners]
    complaint = None
    if command.broker_id < 0:
        complaint = f"{command.broker_id} is no broker id: it must be 0 or more"
    elif len(set(names)) != len(names):
        complaint = f"broker {command.broker_id} names a listener twice: {', '.join(names)}"
    if complaint is not None:
        raise ApiError(ErrorCode.INVALID_REGISTRATION, complaint)


def _check_not_alive(state: ControllerState, before: BrokerImage, now_ms: int) -> None:
    """Two processes of one id would both lead; who is leaving makes room for its successor."""
    timeout_ms = state.broker_settings.broker_session_timeout_ms
    is_alive = state.sessions.is_alive(before.broker_id, before.broker_epoch, now_ms, timeout_ms)
    if is_alive and not before.is_in_controlled_shutdown:
        raise ApiError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"another broker with the id {before.broker_id} is alive: give this one an id of its"
            f" own; if it is the same one restarted, it is taken in once {timeout_ms} ms have"
            " passed since it was last heard of",
        )


def _check_features(state: ControllerState, command: RegisterBroker) -> None:
    if not command.features:
        return
    ranges = {feature.name: feature for feature in command.features}
    for name, level in state.image.features.items():
        found = ranges.get(name)
        if found is None or not found.min_level <= level <= found.max_level:
            understands = (
                "nothing of it"
                if found is None
                else (f"levels {found.min_level} to {found.max_level}")
            )
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the cluster's {name} is at level {level}, but broker {command.broker_id}"
                f" understands {understands}: start it from a release that fits",
            )


def _predecessor_losses(
    state: ControllerState, command: RegisterBroker, before: BrokerImage | None
) -> list[Record]:
    """What a new incarnation loses of its predecessor's: the lead, and trust in its logs."""
    broker_id = command.broker_id
    only_this = frozenset((broker_id,))
    nobody: frozenset[int] = frozenset()
    previous = command.previous_broker_epoch
    is_unclean_shutdown = previous is not None and (
        before is None or before.broker_epoch != previous
    )
    known = set(before.log_dirs) if before is not None else set()
    is_erased = bool(known and command.log_dirs) and known.isdisjoint(command.log_dirs)
    was_active = before is not None and not before.is_fenced
    is_shutting_down = command.starts_fenced and was_active
    if not (is_shutting_down or is_unclean_shutdown or is_erased):
        return []
    return remove_from_isrs(
        state,
        only_this if is_shutting_down else nobody,
        unclean_shutdown=only_this if is_unclean_shutdown else nobody,
        erased=only_this if is_erased else nobody,
    )


def _fence(state: ControllerState, broker_ids: Set[int]) -> list[Record]:
    brokers = state.image.brokers
    records: list[Record] = [
        BrokerChanged(broker_id, True, brokers[broker_id].is_in_controlled_shutdown)
        for broker_id in sorted(broker_ids)
    ]
    records.extend(remove_from_isrs(state, broker_ids))
    return records


class _BrokerControlState(NamedTuple):
    """How a broker stands after a heartbeat."""

    is_fenced: bool
    is_shutting_down: bool = False
    should_shut_down: bool = False
    released: tuple[Record, ...] = ()
    """What others take over while it is leaving."""


def _next_control_state(
    state: ControllerState, broker: BrokerImage, session: BrokerSession, command: BrokerHeartbeat
) -> _BrokerControlState:
    """The table at the top of the module, for heartbeats."""
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
    """What makes a broker stand so, and what that means for its partitions."""
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
    """Whether a broker in controlled shutdown may stop: others can take nothing more, and nobody
    looks there for what they have taken.

    All others that serve must know that its leaders have moved, or clients would be sent to it.
    """
    if changes.is_waiting:
        return False
    if not broker.is_in_controlled_shutdown:
        return not leads
    if changes.records:
        return False
    if session.shutdown_offset is None:
        # A controller before this one began it: whatever it did is in the log by now.
        session.shutdown_offset = state.image.offset
    others = [other.broker_id for other in state.active_brokers()]
    return state.sessions.have_all_applied(others, session.shutdown_offset)
