"""The steps of one transactional id: the table of states, epochs and producer ids."""

import msgspec
import pytest

from odradek.coordinator.transaction.transaction_metadata import (
    EPOCH_MAX,
    TransactionMetadata,
    TransactionState,
    is_expired,
    next_owner,
    prepare_add_partitions,
    prepare_commit_or_abort,
    prepare_complete,
    prepare_fence,
    prepare_init_producer_id,
    require_owner,
)
from odradek.protocol.errors import ApiError, ErrorCode

NOW_MS = 5_000
BEGUN_MS = 1_000
PARTITIONS = frozenset({("a", 0), ("b", 1)})
STATES = (
    TransactionState.EMPTY,
    TransactionState.ONGOING,
    TransactionState.PREPARE_COMMIT,
    TransactionState.PREPARE_ABORT,
    TransactionState.COMPLETE_COMMIT,
    TransactionState.COMPLETE_ABORT,
)


def known(state: TransactionState, *, version: int = 1, epoch: int = 7) -> TransactionMetadata:
    is_open = state is TransactionState.ONGOING or state.is_prepared
    return TransactionMetadata(
        producer_id=10,
        producer_epoch=epoch,
        timeout_ms=60_000,
        state=state,
        partitions=PARTITIONS if is_open else frozenset(),
        last_update_ms=BEGUN_MS,
        start_ms=BEGUN_MS,
        client_version=version,
    )


def init(before: TransactionMetadata | None, expected: tuple[int, int] | None = None) -> object:
    try:
        return prepare_init_producer_id(
            before, timeout_ms=9_000, expected=expected, fresh_producer_id=99, now_ms=NOW_MS
        )
    except ApiError as error:
        return error.code


def end(
    before: TransactionMetadata | None, epoch: int, *, is_commit: bool, version: int = 1
) -> object:
    """The decision; NONE for a retry, which changes nothing."""
    try:
        decided = prepare_commit_or_abort(
            before,
            10,
            epoch,
            is_commit=is_commit,
            client_version=version,
            fresh_producer_id=99,
            now_ms=NOW_MS,
        )
    except ApiError as error:
        return error.code
    return ErrorCode.NONE if decided is before else decided


def owner_error(
    before: TransactionMetadata | None, producer_id: int, producer_epoch: int
) -> ErrorCode:
    try:
        require_owner(before, producer_id, producer_epoch)
    except ApiError as error:
        return error.code
    return ErrorCode.NONE


def outcome(result: object) -> str:
    """The next state's name or the error's number, as the table has it."""
    if isinstance(result, TransactionMetadata):
        return result.state.label
    assert isinstance(result, ErrorCode)
    return str(int(result))


INIT = ("Empty", None, "51", "51", "Empty", "Empty")
ADD = ("Ongoing", "Ongoing", "51", "51", "Ongoing", "Ongoing")
COMMIT_V1 = ("48", "PrepareCommit", "51", "51", "0", "48")
ABORT_V1 = ("48", "PrepareAbort", "51", "51", "48", "0")
COMMIT_V2 = ("48", "PrepareCommit", "51", "51", "48", "48")
ABORT_V2 = ("PrepareAbort", "PrepareAbort", "51", "51", "PrepareAbort", "PrepareAbort")


@pytest.mark.parametrize(("state", "expected"), list(zip(STATES, INIT, strict=True)))
def test_init_producer_id_by_state(state: TransactionState, expected: str | None) -> None:
    if expected is not None:
        assert outcome(init(known(state))) == expected


@pytest.mark.parametrize(("state", "expected"), list(zip(STATES, ADD, strict=True)))
def test_add_partitions_by_state(state: TransactionState, expected: str) -> None:
    grown: object
    try:
        grown = prepare_add_partitions(
            known(state), 10, 7, frozenset({("c", 0)}), client_version=1, now_ms=NOW_MS
        )
    except ApiError as error:
        grown = error.code
    assert outcome(grown) == expected
    if isinstance(grown, TransactionMetadata):
        was_open = state is TransactionState.ONGOING
        assert grown.start_ms == (BEGUN_MS if was_open else NOW_MS)
        assert grown.partitions == (PARTITIONS if was_open else frozenset()) | {("c", 0)}


@pytest.mark.parametrize(
    ("version", "is_commit", "table"),
    [(1, True, COMMIT_V1), (1, False, ABORT_V1), (2, True, COMMIT_V2), (2, False, ABORT_V2)],
)
def test_end_transaction_by_state(version: int, is_commit: bool, table: tuple[str, ...]) -> None:
    found = tuple(
        outcome(end(known(state, version=version), 7, is_commit=is_commit, version=version))
        for state in STATES
    )
    assert found == table


def test_partitions_that_were_added_before_change_nothing() -> None:
    before = known(TransactionState.ONGOING)
    again = prepare_add_partitions(
        before, 10, 7, frozenset({("a", 0)}), client_version=1, now_ms=NOW_MS
    )
    assert again is before


def test_a_new_id_gets_the_fresh_producer_id_at_epoch_0() -> None:
    made = init(None)
    assert isinstance(made, TransactionMetadata)
    assert (made.producer_id, made.producer_epoch, made.timeout_ms) == (99, 0, 9_000)
    assert made.state is TransactionState.EMPTY
    assert made.start_ms == -1


def test_a_new_owner_gets_the_next_epoch_and_fences_the_former_one() -> None:
    renewed = init(known(TransactionState.COMPLETE_COMMIT))
    assert isinstance(renewed, TransactionMetadata)
    assert (renewed.producer_id, renewed.producer_epoch) == (10, 8)
    assert owner_error(renewed, 10, 7) is ErrorCode.PRODUCER_FENCED
    assert owner_error(renewed, 10, 8) is ErrorCode.NONE
    assert owner_error(renewed, 11, 8) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert owner_error(None, 10, 8) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert init(renewed, (10, 7)) is ErrorCode.PRODUCER_FENCED


def test_the_owner_gets_the_next_epoch_also_in_a_retry() -> None:
    renewed = init(known(TransactionState.EMPTY), (10, 7))
    assert isinstance(renewed, TransactionMetadata)
    assert renewed.producer_epoch == 8
    again = init(renewed, (10, 7))
    assert isinstance(again, TransactionMetadata)
    assert again.producer_epoch == 8
    third = init(again, (10, 7))
    assert isinstance(third, TransactionMetadata)
    assert third.producer_epoch == 8


def test_an_owner_of_another_producer_id_is_fenced() -> None:
    assert init(known(TransactionState.EMPTY), (11, 7)) is ErrorCode.PRODUCER_FENCED


def test_exhausted_epochs_give_a_new_producer_id() -> None:
    last = known(TransactionState.EMPTY, epoch=EPOCH_MAX - 1)
    renewed = init(last)
    assert isinstance(renewed, TransactionMetadata)
    assert (renewed.producer_id, renewed.producer_epoch) == (99, 0)
    assert renewed.previous_producer_id == 10
    resumed = init(last, (10, EPOCH_MAX - 1))
    assert isinstance(resumed, TransactionMetadata)
    # The answer was lost: the owner still has the former id, at its last epoch.
    again = init(resumed, (10, EPOCH_MAX - 1))
    assert isinstance(again, TransactionMetadata)
    assert (again.producer_id, again.producer_epoch) == (99, 0)


def test_a_client_of_version_2_gets_a_new_epoch_with_the_end() -> None:
    prepared = end(known(TransactionState.ONGOING, version=2), 7, is_commit=True, version=2)
    assert isinstance(prepared, TransactionMetadata)
    assert prepared.producer_epoch == 8
    assert prepared.partitions == PARTITIONS
    assert next_owner(prepared) == (10, 8)
    assert end(prepared, 7, is_commit=True, version=2) is ErrorCode.CONCURRENT_TRANSACTIONS
    done = prepare_complete(prepared, now_ms=NOW_MS)
    assert done.partitions == frozenset()
    assert next_owner(done) == (10, 8)
    assert end(done, 7, is_commit=True, version=2) is ErrorCode.NONE
    assert end(done, 7, is_commit=False, version=2) is ErrorCode.INVALID_TXN_STATE
    assert end(done, 6, is_commit=True, version=2) is ErrorCode.PRODUCER_FENCED


def test_a_client_of_version_1_keeps_its_epoch() -> None:
    prepared = end(known(TransactionState.ONGOING), 7, is_commit=False)
    assert isinstance(prepared, TransactionMetadata)
    assert prepared.producer_epoch == 7
    assert end(prepare_complete(prepared, now_ms=NOW_MS), 7, is_commit=False) is ErrorCode.NONE


def test_a_client_of_version_2_gets_a_new_producer_id_when_epochs_are_exhausted() -> None:
    last = EPOCH_MAX - 1
    before = known(TransactionState.ONGOING, version=2, epoch=last)
    prepared = end(before, last, is_commit=True, version=2)
    assert isinstance(prepared, TransactionMetadata)
    # The markers still have the former id, at an epoch that no client ever had.
    assert (prepared.producer_id, prepared.producer_epoch) == (10, EPOCH_MAX)
    assert next_owner(prepared) == (99, 0)
    done = prepare_complete(prepared, now_ms=NOW_MS)
    assert (done.producer_id, done.producer_epoch, done.previous_producer_id) == (99, 0, 10)
    assert end(done, last, is_commit=True, version=2) is ErrorCode.NONE
    assert next_owner(done) == (99, 0)


@pytest.mark.parametrize(
    ("version", "commit", "abort"),
    [
        (1, ErrorCode.PRODUCER_FENCED, ErrorCode.PRODUCER_FENCED),
        (2, ErrorCode.INVALID_TXN_STATE, ErrorCode.NONE),
    ],
)
def test_an_abort_by_the_coordinator_fences_the_owner(
    version: int, commit: ErrorCode, abort: ErrorCode
) -> None:
    aborted = prepare_fence(known(TransactionState.ONGOING, version=version), now_ms=NOW_MS)
    assert aborted.state is TransactionState.PREPARE_ABORT
    assert aborted.producer_epoch == 8
    done = prepare_complete(aborted, now_ms=NOW_MS)
    assert owner_error(done, 10, 7) is ErrorCode.PRODUCER_FENCED
    # In version 2 this is what the end of the client's own would have led to (KIP-890).
    assert end(done, 7, is_commit=True, version=version) is commit
    assert end(done, 7, is_commit=False, version=version) is abort


@pytest.mark.parametrize("version", [1, 2])
def test_an_owner_whose_transaction_was_aborted_continues_in_the_next_epoch(version: int) -> None:
    """KIP-588."""
    aborted = prepare_fence(known(TransactionState.ONGOING, version=version), now_ms=NOW_MS)
    assert init(aborted, (10, 7)) is ErrorCode.CONCURRENT_TRANSACTIONS
    done = prepare_complete(aborted, now_ms=NOW_MS)
    resumed = init(done, (10, 7))
    assert isinstance(resumed, TransactionMetadata)
    assert (resumed.state, resumed.producer_epoch) == (TransactionState.EMPTY, 8)
    assert init(resumed, (10, 7)) == resumed
    followed = init(done)
    assert isinstance(followed, TransactionMetadata)
    assert followed.producer_epoch == 9
    assert init(followed, (10, 7)) is ErrorCode.PRODUCER_FENCED


def test_the_last_epoch_is_for_fencing_only() -> None:
    last = known(TransactionState.ONGOING, epoch=EPOCH_MAX - 1)
    done = prepare_complete(prepare_fence(last, now_ms=NOW_MS), now_ms=NOW_MS)
    assert done.producer_epoch == EPOCH_MAX
    assert init(done, (10, EPOCH_MAX - 2)) is ErrorCode.PRODUCER_FENCED
    resumed = init(done, (10, EPOCH_MAX - 1))
    assert isinstance(resumed, TransactionMetadata)
    assert (resumed.producer_id, resumed.producer_epoch) == (99, 0)


@pytest.mark.parametrize("state", STATES)
def test_only_idle_ids_expire(state: TransactionState) -> None:
    before = known(state)
    is_idle = state in (
        TransactionState.EMPTY,
        TransactionState.COMPLETE_COMMIT,
        TransactionState.COMPLETE_ABORT,
    )
    assert is_expired(before, now_ms=BEGUN_MS + 100, expiration_ms=100) is is_idle
    assert not is_expired(before, now_ms=BEGUN_MS + 99, expiration_ms=100)


def test_metadata_are_immutable() -> None:
    before = known(TransactionState.ONGOING)
    copy = msgspec.structs.replace(before)
    prepare_fence(before, now_ms=NOW_MS)
    end(before, 7, is_commit=True)
    assert before == copy
