"""The metadata of one transactional id: its owner and the state of its transaction.

Every step is a pure function from the newest value to the next one, which the shard writes, or
raises an ApiError. An owner is a producer id with an epoch; requests with another epoch are fenced
(KIP-98). A client of version 2 (KIP-890) gets a new epoch with the end of each transaction, and a
new producer id when the epochs are exhausted.

    state           InitProducerId    AddPartitions    EndTxn commit     EndTxn abort
    ------------------------------------------------------------------------------------------
    (unknown)       Empty             49               49                49
    Empty           Empty             Ongoing          48                48, v2: PrepareAbort
    Ongoing         PrepareAbort, 51  Ongoing          PrepareCommit     PrepareAbort
    PrepareCommit   51                51               51                51
    PrepareAbort    51                51               51                51
    CompleteCommit  Empty             Ongoing          0 (v2: a retry)   48, v2: PrepareAbort
    CompleteAbort   Empty             Ongoing          48                0, v2: PrepareAbort

    event                                    from            to
    ------------------------------------------------------------------------------------------
    all markers are written                  PrepareCommit   CompleteCommit
                                             PrepareAbort    CompleteAbort
    the transaction's timeout is over        Ongoing         PrepareAbort, with a higher epoch
    nothing for transactional.id.expiration  Empty, Complete (unknown)

48 is INVALID_TXN_STATE, 49 INVALID_PRODUCER_ID_MAPPING, 51 CONCURRENT_TRANSACTIONS. Dead and
PrepareEpochFence exist for Kafka's numbers only: Kafka has them in memory, here each is one record.

While the markers are being written, the answer is 51 before the producer id and the epoch are
looked at, as with Kafka's pending transition: the client knows its next epoch, or its next producer
id, before the transaction is complete. A client of version 1 keeps both, so its EndTxn is fenced
first.
"""

from enum import IntEnum
from typing import Final

import msgspec

from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.types import NO_EPOCH, NO_PRODUCER_ID

NO_TIME: Final = -1
EPOCH_MAX: Final = 2**15 - 1
EPOCH_BUMPS_SINCE: Final = 2
"""The transaction version from which every end of a transaction increments the epoch."""

Partition = tuple[str, int]
"""A topic's name and a partition's index."""


class TransactionState(IntEnum):
    """Kafka's states, with the numbers of the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """The name that tools use: PrepareCommit."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def is_prepared(self) -> bool:
        """Whether it is decided, and markers are being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


class TransactionMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The newest state of a transactional id. Times are in ms since 1970.

    `last_producer_epoch` is the owner's former epoch: InitProducerId accepts it from an owner that
    did not get its response, or whose transaction was aborted. Kafka's records do not have it, so
    such an owner is fenced after a move of the coordinator. `client_version` is the transaction
    version of the client (0 to 2).
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[Partition] = frozenset()
    last_update_ms: int
    start_ms: int = NO_TIME
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_version: int = 0
    last_producer_epoch: int = NO_EPOCH

    @property
    def bumps_epochs(self) -> bool:
        """Whether every end of a transaction increments the epoch (KIP-890)."""
        return self.client_version >= EPOCH_BUMPS_SINCE

    @property
    def deadline_ms(self) -> int:
        """When an ongoing transaction is aborted."""
        return self.start_ms + self.timeout_ms


def is_epoch_exhausted(epoch: int) -> bool:
    """Whether the producer id can have no further owner: the last epoch is for fencing."""
    return epoch >= EPOCH_MAX - 1


def prepare_init_producer_id(
    known: TransactionMetadata | None,
    *,
    timeout_ms: int,
    expected: tuple[int, int] | None,
    fresh_producer_id: int,
    now_ms: int,
) -> TransactionMetadata:
    """Give the transactional id to a new owner, or the next epoch to its owner, which sends its
    producer id and epoch (`expected`, KIP-360). An ongoing transaction must be aborted first
    (`prepare_fence`)."""
    if known is None:
        return TransactionMetadata(
            producer_id=fresh_producer_id,
            producer_epoch=0,
            timeout_ms=timeout_ms,
            last_update_ms=now_ms,
        )
    _require_completed(known)
    if expected is not None and not _may_be_owner(known, *expected):
        raise ApiError(ErrorCode.PRODUCER_FENCED)
    assert known.state is not TransactionState.ONGOING, "it is aborted first"
    epoch = known.producer_epoch
    # A retry, or the owner's transaction was aborted: the epoch was incremented already.
    is_former = expected is not None and expected[1] == known.last_producer_epoch
    if expected is not None and expected[1] != epoch and not is_former:
        raise ApiError(ErrorCode.PRODUCER_FENCED)
    renewed = msgspec.structs.replace(
        known,
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        partitions=frozenset(),
        last_update_ms=now_ms,
        start_ms=NO_TIME,
        last_producer_epoch=NO_EPOCH if expected is None else expected[1],
    )
    # The last epoch is for fencing only.
    if epoch == EPOCH_MAX or (is_epoch_exhausted(epoch) and not is_former):
        return msgspec.structs.replace(
            renewed,
            producer_id=fresh_producer_id,
            producer_epoch=0,
            previous_producer_id=known.producer_id,
        )
    return renewed if is_former else msgspec.structs.replace(renewed, producer_epoch=epoch + 1)


def _may_be_owner(known: TransactionMetadata, producer_id: int, producer_epoch: int) -> bool:
    return producer_id == known.producer_id or (
        # A retry after a change of the producer id, without the response of the first request.
        producer_id == known.previous_producer_id and is_epoch_exhausted(producer_epoch)
    )


def require_owner(
    known: TransactionMetadata | None, producer_id: int, producer_epoch: int
) -> TransactionMetadata:
    """The metadata, for their owner; ApiError for other producer ids and epochs."""
    if known is None or known.producer_id != producer_id:
        raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if known.producer_epoch != producer_epoch:
        raise ApiError(ErrorCode.PRODUCER_FENCED)
    return known


def _require_completed(known: TransactionMetadata | None) -> None:
    if known is not None and known.state.is_prepared:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)


def prepare_add_partitions(
    found: TransactionMetadata | None,
    producer_id: int,
    producer_epoch: int,
    partitions: frozenset[Partition],
    *,
    client_version: int,
    now_ms: int,
) -> TransactionMetadata:
    """Add partitions to the owner's transaction. Returns `found` itself if all are in it."""
    _require_completed(found)
    known = require_owner(found, producer_id, producer_epoch)
    if known.state is TransactionState.ONGOING:
        if partitions <= known.partitions:
            return known
        start_ms = known.start_ms
    else:
        start_ms = now_ms
    return msgspec.structs.replace(
        known,
        state=TransactionState.ONGOING,
        partitions=known.partitions | partitions,
        last_update_ms=now_ms,
        start_ms=start_ms,
        client_version=client_version,
        last_producer_epoch=NO_EPOCH,
    )


def prepare_commit_or_abort(
    known: TransactionMetadata | None,
    producer_id: int,
    producer_epoch: int,
    *,
    is_commit: bool,
    client_version: int,
    fresh_producer_id: int,
    now_ms: int,
) -> TransactionMetadata:
    """EndTxn: decide the transaction. Returns `known` itself for a retry of a completed one."""
    bumps = client_version >= EPOCH_BUMPS_SINCE
    if known is None:
        raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if bumps:
        _require_completed(known)
    is_retry_after_new_id = (
        bumps
        and known.previous_producer_id == producer_id
        and producer_epoch == EPOCH_MAX - 1
        and known.producer_epoch == 0
    )
    if known.producer_id != producer_id and not is_retry_after_new_id:
        raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    is_retry = is_retry_after_new_id or (
        bumps
        and known.producer_epoch == producer_epoch + 1
        and known.state not in (TransactionState.EMPTY, TransactionState.ONGOING)
    )
    if known.producer_epoch != producer_epoch and not is_retry:
        raise ApiError(ErrorCode.PRODUCER_FENCED)
    match known.state:
        case TransactionState.ONGOING:
            return _prepared(known, is_commit, client_version, fresh_producer_id, now_ms)
        case TransactionState.PREPARE_COMMIT | TransactionState.PREPARE_ABORT:
            raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
        case TransactionState.COMPLETE_COMMIT | TransactionState.COMPLETE_ABORT:
            was_commit = known.state is TransactionState.COMPLETE_COMMIT
            if is_retry or not bumps:
                if was_commit is not is_commit:
                    raise ApiError(ErrorCode.INVALID_TXN_STATE)
                return known
    # There is no transaction. A client of version 2 does not know whether its first batch has
    # started one, so it may always abort, which increments the epoch.
    if bumps and not is_commit:
        return _prepared(known, is_commit, client_version, fresh_producer_id, now_ms)
    raise ApiError(ErrorCode.INVALID_TXN_STATE)


def _prepared(
    known: TransactionMetadata,
    is_commit: bool,
    client_version: int,
    fresh_producer_id: int,
    now_ms: int,
) -> TransactionMetadata:
    prepared = msgspec.structs.replace(
        known,
        state=TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT,
        last_update_ms=now_ms,
        start_ms=known.start_ms if known.state is TransactionState.ONGOING else now_ms,
        client_version=client_version,
        last_producer_epoch=NO_EPOCH,
    )
    if known.state is not TransactionState.ONGOING:
        prepared = msgspec.structs.replace(prepared, partitions=frozenset())
    if not prepared.bumps_epochs:
        return prepared
    return msgspec.structs.replace(
        prepared,
        producer_epoch=known.producer_epoch + 1,
        last_producer_epoch=known.producer_epoch,
        next_producer_id=fresh_producer_id
        if is_epoch_exhausted(known.producer_epoch)
        else NO_PRODUCER_ID,
    )


def prepare_fence(known: TransactionMetadata, *, now_ms: int) -> TransactionMetadata:
    """Abort an ongoing transaction for a new owner, or after its timeout.

    The epoch is incremented, so that no batch of the owner is accepted after the marker. After a
    timeout the owner can continue if there is no new owner: with InitProducerId and its former
    epoch, or in version 2 with an abort (KIP-588, KIP-890).
    """
    assert known.state is TransactionState.ONGOING
    return msgspec.structs.replace(
        known,
        producer_epoch=min(known.producer_epoch + 1, EPOCH_MAX),
        state=TransactionState.PREPARE_ABORT,
        last_update_ms=now_ms,
        last_producer_epoch=known.producer_epoch,
        next_producer_id=NO_PRODUCER_ID,
    )


def prepare_complete(known: TransactionMetadata, *, now_ms: int) -> TransactionMetadata:
    """All markers are written."""
    assert known.state.is_prepared
    is_commit = known.state is TransactionState.PREPARE_COMMIT
    done = msgspec.structs.replace(
        known,
        state=TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT,
        partitions=frozenset(),
        last_update_ms=now_ms,
    )
    if known.next_producer_id == NO_PRODUCER_ID:
        return done
    return msgspec.structs.replace(
        done,
        producer_id=known.next_producer_id,
        producer_epoch=0,
        previous_producer_id=known.producer_id,
        next_producer_id=NO_PRODUCER_ID,
    )


def next_owner(known: TransactionMetadata) -> tuple[int, int]:
    """(producer id, epoch) of the client's next transaction, for EndTxn v5 and later."""
    if known.next_producer_id != NO_PRODUCER_ID:
        return known.next_producer_id, 0
    return known.producer_id, known.producer_epoch


def is_expired(known: TransactionMetadata, *, now_ms: int, expiration_ms: int) -> bool:
    """Whether the id expires: it has no transaction and was not used for `expiration_ms`."""
    is_idle = not known.state.is_prepared and known.state is not TransactionState.ONGOING
    return is_idle and now_ms - known.last_update_ms >= expiration_ms
