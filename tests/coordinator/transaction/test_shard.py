"""A transaction shard: requests, markers, timeouts, and loading of any prefix of its log."""

from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from odradek.coordinator.loader import LogEntry
from odradek.coordinator.outcome import Command, ShardReply, TimerKey
from odradek.coordinator.transaction.records import TransactionRecord, encode
from odradek.coordinator.transaction.requests import (
    AddPartitions,
    EndTransaction,
    InitProducer,
    MarkersWritten,
)
from odradek.coordinator.transaction.settings import TransactionSettings
from odradek.coordinator.transaction.shard import (
    DEFER_TIMEOUT_MS,
    DEFERRED_COUNT_MAX,
    TransactionShard,
)
from odradek.coordinator.transaction.transaction_metadata import (
    EPOCH_MAX,
    TransactionMetadata,
    TransactionState,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.transactions import (
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tests.support.transaction_playbook import TIMEOUT_MS, TransactionPlaybook

A0, B1 = ("a", 0), ("b", 1)


def test_a_transaction_from_beginning_to_end() -> None:
    play = TransactionPlaybook()
    owner = play.init()
    assert owner == (1000, 0)
    assert play.state() == "Empty"
    assert play.add(owner, A0, B1) is ErrorCode.NONE
    assert play.state() == "Ongoing"
    assert play.end(owner) == (ErrorCode.NONE, owner)
    assert play.state() == "PrepareCommit"
    markers = play.markers()
    assert markers.is_commit
    assert markers.partitions == {A0, B1}
    assert (markers.producer_id, markers.producer_epoch) == owner
    play.write_markers()
    assert play.state() == "CompleteCommit"
    assert play.end(owner) == (ErrorCode.NONE, owner)
    assert play.sent == []


def test_with_version_2_each_transaction_has_its_own_epoch() -> None:
    play = TransactionPlaybook(client_version=2)
    owner = play.init()
    for epoch in range(1, 4):
        assert play.add(owner, A0) is ErrorCode.NONE
        error, owner = play.end(owner, is_commit=epoch != 2)
        assert (error, owner) == (ErrorCode.NONE, (1000, epoch))
        assert play.markers().producer_epoch == epoch
        play.write_markers()


def test_responses_and_markers_wait_for_the_commit() -> None:
    play = TransactionPlaybook()
    owner = play.init()
    play.add(owner)
    play.hold_log()
    call = play.begin_end(owner)
    assert call.is_parked
    assert play.sent == []
    play.release_log()
    assert call.response(EndTxnResponse).error_code == ErrorCode.NONE
    assert play.markers().is_commit


def test_a_failed_append_reverts_the_decision() -> None:
    play = TransactionPlaybook()
    owner = play.init()
    play.add(owner)
    play.hold_log()
    call = play.begin_end(owner)
    play.fail_log(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert call.refused_with is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert play.sent == []
    assert play.state() == "Ongoing"
    play.tick(TIMEOUT_MS)
    assert play.state() == "PrepareAbort"


def test_a_request_during_the_writing_of_markers_is_deferred() -> None:
    play = TransactionPlaybook()
    owner = play.init()
    play.add(owner, A0)
    play.end(owner)
    more, again, new = play.begin_add(owner, B1), play.begin_end(owner), play.begin_init()
    assert more.is_parked
    play.write_markers()
    assert more.response(ErrorCode) is ErrorCode.NONE
    # Decided in the order in which they came: the new transaction was opened, ended, and is to be
    # completed before there is a new owner.
    assert again.response(EndTxnResponse).error_code == ErrorCode.NONE
    assert play.markers().partitions == {B1}
    assert new.is_parked
    play.write_markers()
    assert new.response(InitProducerIdResponse).producer_epoch == 1


@pytest.mark.parametrize("was_commit", [True, False])
def test_a_client_of_version_2_that_leaves_while_markers_are_written_aborts_nothing(
    was_commit: bool,
) -> None:
    """It ends a transaction and aborts the next one, which is empty, at once. The transaction
    that is being completed is neither aborted nor an error."""
    play = TransactionPlaybook(client_version=2)
    owner = play.init()
    play.add(owner, A0)
    _, renewed = play.end(owner, is_commit=was_commit)
    ended = play.state()
    leaving = play.begin_end(renewed, is_commit=False)
    assert leaving.is_parked
    assert play.state() == ended
    play.write_markers()
    answer = leaving.response(EndTxnResponse)
    assert (answer.error_code, answer.producer_epoch) == (ErrorCode.NONE, renewed[1] + 1)
    play.write_markers()
    assert play.state() == "CompleteAbort"
    assert play.add((answer.producer_id, answer.producer_epoch), A0) is ErrorCode.NONE


def test_also_after_a_move_the_next_epoch_waits_for_the_markers() -> None:
    play = TransactionPlaybook(client_version=2)
    owner = play.init()
    play.add(owner, A0)
    _, renewed = play.end(owner)
    play.reload()
    leaving = play.begin_end(renewed, is_commit=False)
    assert leaving.is_parked
    play.tick(DEFER_TIMEOUT_MS)
    assert leaving.response(EndTxnResponse).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    play.write_markers()
    assert play.end(renewed, is_commit=False)[0] is ErrorCode.NONE


def test_a_lost_response_is_repeated_after_the_markers_and_not_for_the_other_decision() -> None:
    play = TransactionPlaybook(client_version=2)
    owner = play.init()
    play.add(owner, A0)
    _, renewed = play.end(owner)
    again, other = play.begin_end(owner), play.begin_end(owner, is_commit=False)
    assert again.is_parked
    assert other.is_parked
    play.write_markers()
    answer = again.response(EndTxnResponse)
    assert (answer.error_code, answer.producer_epoch) == (ErrorCode.NONE, renewed[1])
    assert other.response(EndTxnResponse).error_code == ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("client_version", [1, 2])
def test_a_fenced_owner_learns_it_after_the_markers_at_the_latest(client_version: int) -> None:
    play = TransactionPlaybook(client_version=client_version)
    owner = play.init()
    play.add(owner, A0)
    play.begin_init()
    fenced = play.begin_end(owner, is_commit=False)
    if client_version == 2:
        assert fenced.is_parked
        play.tick(DEFER_TIMEOUT_MS)
        assert fenced.response(EndTxnResponse).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
        play.write_markers()
        play.init()
        fenced = play.begin_end(owner, is_commit=False)
    assert fenced.response(EndTxnResponse).error_code == ErrorCode.PRODUCER_FENCED


def test_a_deferred_request_times_out_with_concurrent_transactions() -> None:
    play = TransactionPlaybook()
    owner = play.init()
    play.add(owner)
    play.end(owner)
    calls = [play.begin_add(owner) for _ in range(DEFERRED_COUNT_MAX + 1)]
    concurrent = ErrorCode.CONCURRENT_TRANSACTIONS
    assert calls[-1].response(ErrorCode) is concurrent
    assert calls[0].is_parked
    play.tick(DEFER_TIMEOUT_MS)
    assert calls[0].response(ErrorCode) is concurrent
    play.write_markers()
    assert play.add(owner) is ErrorCode.NONE


def test_deferred_requests_are_refused_when_the_shard_moves() -> None:
    play = TransactionPlaybook()
    owner = play.init()
    play.add(owner)
    play.end(owner)
    call = play.begin_add(owner)
    play.reload()
    assert call.refused_with is ErrorCode.NOT_COORDINATOR


def test_init_producer_id_aborts_an_open_transaction_first() -> None:
    play = TransactionPlaybook()
    owner = play.init()
    play.add(owner, A0)
    call = play.begin_init()
    assert call.is_parked
    assert not play.markers().is_commit
    assert play.markers().producer_epoch == owner[1] + 1
    play.write_markers()
    assert call.response(InitProducerIdResponse).producer_epoch == owner[1] + 2
    assert play.end(owner)[0] is ErrorCode.PRODUCER_FENCED
    assert play.add(owner) is ErrorCode.PRODUCER_FENCED


def test_init_producer_id_times_out_when_the_abort_takes_too_long() -> None:
    play = TransactionPlaybook()
    owner = play.init()
    play.add(owner)
    call = play.begin_init()
    play.tick(DEFER_TIMEOUT_MS)
    answer = call.response(InitProducerIdResponse)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (51, -1, -1)


def test_init_producer_id_is_retriable_when_the_abort_cannot_be_written() -> None:
    play = TransactionPlaybook()
    owner = play.init()
    play.add(owner)
    play.hold_log()
    call = play.begin_init()
    play.fail_log(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert call.response(InitProducerIdResponse).error_code == 51
    assert play.end(owner)[0] is ErrorCode.NONE


@pytest.mark.parametrize("client_version", [1, 2])
def test_a_transaction_is_aborted_after_its_timeout(client_version: int) -> None:
    play = TransactionPlaybook(client_version=client_version)
    owner = play.init()
    play.add(owner, A0)
    play.tick(TIMEOUT_MS - 1)
    assert play.state() == "Ongoing"
    play.tick(1)
    assert play.state() == "PrepareAbort"
    assert not play.markers().is_commit
    play.write_markers()
    assert play.state() == "CompleteAbort"
    assert play.add(owner) is ErrorCode.PRODUCER_FENCED
    error, after = play.end(owner, is_commit=False)
    if client_version == 1:
        assert error is ErrorCode.PRODUCER_FENCED
    else:
        assert (error, after) == (ErrorCode.NONE, (owner[0], owner[1] + 1))
    assert play.init(expected=owner) == (owner[0], owner[1] + 1)
    assert play.add((owner[0], owner[1] + 1)) is ErrorCode.NONE


def test_init_producer_id_of_the_owner_with_an_open_transaction_is_not_fenced() -> None:
    play = TransactionPlaybook()
    owner = play.init()
    play.add(owner, A0)
    call = play.begin_init(expected=owner)
    assert call.is_parked
    assert not play.markers().is_commit
    play.write_markers()
    answer = call.response(InitProducerIdResponse)
    assert (answer.error_code, answer.producer_epoch) == (ErrorCode.NONE, owner[1] + 1)
    assert play.add((owner[0], owner[1] + 1)) is ErrorCode.NONE


def test_the_timeout_starts_with_the_first_partition_also_after_a_reload() -> None:
    play = TransactionPlaybook()
    owner = play.init()
    play.tick(TIMEOUT_MS)
    play.add(owner, A0)
    play.tick(TIMEOUT_MS - 10)
    play.add(owner, B1)
    play.reload()
    play.tick(9)
    assert play.state() == "Ongoing"
    play.tick(1)
    assert play.state() == "PrepareAbort"


def test_an_ended_transaction_does_not_time_out() -> None:
    play = TransactionPlaybook()
    owner = play.init()
    play.add(owner)
    play.end(owner)
    play.write_markers()
    play.tick(2 * TIMEOUT_MS)
    assert play.state() == "CompleteCommit"


def test_markers_are_written_again_after_a_reload() -> None:
    play = TransactionPlaybook(client_version=2)
    owner = play.init()
    play.add(owner, A0)
    play.end(owner)
    before = play.markers()
    play.reload()
    assert play.sent == [before]
    play.write_markers()
    assert play.state() == "CompleteCommit"
    play.reload()
    assert play.sent == []


@pytest.mark.parametrize("transactional_id", ["t", "unknown"])
def test_a_final_refusal_waits_for_the_log(transactional_id: str) -> None:
    """A coordinator that does not know yet that it was replaced refuses nobody for good: the
    client's newer epoch, or its id, may be known to the next coordinator."""
    play = TransactionPlaybook()
    producer_id, epoch = play.init()
    play.hold_log()
    newer = producer_id, epoch + 2
    adding = play.begin_add(newer, A0, transactional_id=transactional_id)
    assert adding.is_parked
    play.fail_log(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert adding.refused_with is ErrorCode.NOT_COORDINATOR


def test_a_verification_that_fails_waits_for_the_log() -> None:
    play = TransactionPlaybook()
    owner = play.init()
    play.add(owner, A0)
    play.hold_log()
    confirmed, missing, fenced = (
        play.begin_verify(*which) for which in ((owner, A0), (owner, B1), ((owner[0], 9), A0))
    )
    assert confirmed.response(frozenset) == frozenset()
    assert missing.is_parked
    assert fenced.is_parked
    play.fail_log(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert missing.refused_with is ErrorCode.NOT_COORDINATOR
    assert fenced.refused_with is ErrorCode.NOT_COORDINATOR


def test_late_reports_of_markers_change_nothing() -> None:
    play = TransactionPlaybook(client_version=2)
    owner = play.init()
    play.add(owner, A0)
    _, owner = play.end(owner)
    late = list(play.sent)
    play.write_markers()
    play.add(owner, B1)
    play.end(owner)
    pending, play.sent = play.sent, late
    play.write_markers()
    assert play.state() == "PrepareCommit"
    play.sent = pending
    play.write_markers()
    assert play.state() == "CompleteCommit"


def test_verification_returns_partitions_that_are_not_in_the_transaction() -> None:
    play = TransactionPlaybook()
    owner = play.init()
    play.add(owner, A0)
    assert play.verify(owner, A0) == frozenset()
    assert play.verify(owner, A0, B1) == frozenset({B1})
    assert play.verify((owner[0], 9), A0) is ErrorCode.PRODUCER_FENCED
    assert play.verify((9, 0), A0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    play.end(owner)
    assert play.verify(owner, A0) is ErrorCode.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_timeouts_have_limits(timeout_ms: int) -> None:
    answer = (
        TransactionPlaybook().begin_init(timeout_ms=timeout_ms).response(InitProducerIdResponse)
    )
    assert answer.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize(("version", "code"), [(3, 47), (4, 90)])
def test_old_versions_of_init_producer_id_get_invalid_producer_epoch(
    version: int, code: int
) -> None:
    play = TransactionPlaybook()
    play.init()
    call = play.begin_init(expected=(77, 0), version=version)
    assert call.response(InitProducerIdResponse).error_code == code


@pytest.mark.parametrize(("version", "code"), [(1, 47), (2, 90)])
def test_old_versions_of_end_txn_get_invalid_producer_epoch(version: int, code: int) -> None:
    play = TransactionPlaybook()
    producer_id, _ = play.init()
    call = play.begin_end((producer_id, 5), version=version)
    assert call.response(EndTxnResponse).error_code == code


def test_another_owner_neither_resumes_nor_aborts_an_open_transaction() -> None:
    play = TransactionPlaybook()
    owner = play.init()
    play.add(owner)
    answer = play.begin_init(expected=(77, 0)).response(InitProducerIdResponse)
    assert answer.error_code == ErrorCode.PRODUCER_FENCED
    assert play.state() == "Ongoing"


def test_exhausted_epochs_in_version_2_give_a_new_producer_id() -> None:
    last = TransactionMetadata(
        producer_id=5, producer_epoch=EPOCH_MAX - 1, timeout_ms=TIMEOUT_MS, last_update_ms=1
    )
    log: list[LogEntry] = [encode(TransactionRecord("t", last), version=1)]
    play = TransactionPlaybook(client_version=2, log=log)
    owner = (5, EPOCH_MAX - 1)
    play.add(owner, A0)
    error, renewed = play.end(owner)
    assert (error, renewed) == (ErrorCode.NONE, (1000, 0))
    assert (play.markers().producer_id, play.markers().producer_epoch) == (5, EPOCH_MAX)
    early = play.begin_add(renewed, A0)
    assert early.is_parked, "the new producer id counts when the markers are written"
    play.tick(DEFER_TIMEOUT_MS)
    assert early.response(ErrorCode) is ErrorCode.CONCURRENT_TRANSACTIONS
    play.write_markers()
    play.reload()
    assert play.end(owner) == (ErrorCode.NONE, renewed)
    assert play.add(renewed, A0) is ErrorCode.NONE


def test_unused_ids_expire() -> None:
    play = TransactionPlaybook(
        TransactionSettings(expiration_ms=1_000, expiry_check_interval_ms=400)
    )
    owner = play.init(transactional_id="busy", timeout_ms=900_000)
    play.add(owner, transactional_id="busy")
    play.init(transactional_id="idle")
    play.tick(900)
    assert play.state("idle") == "Empty"
    play.tick(300)
    assert play.describe("idle").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert play.state("busy") == "Ongoing"
    play.reload()
    assert [state.transactional_id for state in play.list().transaction_states] == ["busy"]


def test_tools_see_committed_state() -> None:
    play = TransactionPlaybook()
    owner = play.init()
    play.hold_log()
    play.begin_add(owner)
    assert play.state() == "Empty"
    assert play.list().transaction_states[0].transaction_state == "Empty"
    play.release_log()
    assert play.state() == "Ongoing"


def story(client_version: int) -> TransactionPlaybook:
    """A log with records of all kinds."""
    play = TransactionPlaybook(client_version=client_version)
    owner = play.init()
    for is_commit in (True, False, True):
        play.add(owner, A0)
        play.add(owner, B1)
        _, owner = play.end(owner, is_commit=is_commit)
        play.write_markers()
    play.add(owner, A0)
    play.begin_init()
    play.write_markers()
    play.add(play.init(transactional_id="u"), B1, transactional_id="u")
    play.tick(TIMEOUT_MS)
    play.write_markers()
    return play


@pytest.mark.parametrize("client_version", [1, 2])
def test_every_prefix_of_a_log_can_be_loaded(client_version: int) -> None:
    """A coordinator fails after each record. The next one changes no decision: prepared
    transactions complete as decided, ongoing ones are aborted, and the ids can be used."""
    whole = story(client_version).log
    assert len(whole) > 20
    for length in range(len(whole) + 1):
        play = TransactionPlaybook(client_version=client_version, log=whole[:length])
        before = dict(play.shard.transactions.items())
        play.write_markers()
        play.tick(TIMEOUT_MS)
        play.write_markers()
        for name, known in before.items():
            was_commit = known.state in (
                TransactionState.PREPARE_COMMIT,
                TransactionState.COMPLETE_COMMIT,
            )
            now = play.shard.transactions.get(name)
            assert now is not None
            assert not now.state.is_prepared
            assert now.state is not TransactionState.ONGOING
            assert (now.state is TransactionState.COMPLETE_COMMIT) == was_commit
            owner = play.init(transactional_id=name)
            assert owner > (known.producer_id, known.producer_epoch)
            assert play.add(owner, A0, transactional_id=name) is ErrorCode.NONE


def test_a_loaded_shard_has_the_same_state() -> None:
    play = story(2)

    def tables() -> dict[str, TransactionMetadata]:
        """The one field that the log has no room for is left out."""
        return {
            name: msgspec.structs.replace(known, last_producer_epoch=-1)
            for name, known in play.shard.transactions.items()
        }

    before = tables()
    play.reload()
    assert tables() == before


# -- docs/coordinators/transactions.md -------------------------------------------------------------

TABLE = Path(__file__).parents[3] / "docs" / "coordinators" / "transactions.md"
OWNER = (10, 7)
IDLE_MS = 1_000_000
UNKNOWN = "(unknown)"
TIMERS: dict[str, TimerKey] = {"Timeout": ("timeout", "t"), "Expiry": ("expiry",)}
INTERNAL = {*TIMERS, "Markers are written"}


class Row(NamedTuple):
    """A transition: state, event, next state, increase of the epoch, response. `waits` is a
    response that comes when the markers are written, or CONCURRENT_TRANSACTIONS after a while."""

    state: str
    event: str
    client: str
    next_state: str
    epoch: str
    answer: str


def documented() -> set[Row]:
    """The rows of the table."""
    lines = TABLE.read_text().splitlines()
    begin = lines.index("| State | Event | Client | Next state | Epoch | Answer |")
    rows = set()
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        state, event, client, *rest = (cell.strip() for cell in line.strip("|").split("|"))
        for version in ("V1", "V2") if client == "any" else (client,):
            rows.add(Row(state, event, version, *rest))
    return rows


def transaction_in(state: TransactionState, version: int) -> TransactionMetadata:
    is_open = state is TransactionState.ONGOING or state.is_prepared
    return TransactionMetadata(
        producer_id=OWNER[0],
        producer_epoch=OWNER[1],
        timeout_ms=TIMEOUT_MS,
        state=state,
        partitions=frozenset({A0}) if is_open else frozenset(),
        last_update_ms=0,
        start_ms=0,
        client_version=version,
    )


def events(version: int) -> dict[str, tuple[object, int]]:
    """The events and their times: requests of the owner, and timers of the shard."""
    now_ms = 5_000

    def end(epoch: int, *, is_commit: bool) -> EndTransaction:
        request = EndTxnRequest(
            transactional_id="t",
            producer_id=OWNER[0],
            producer_epoch=epoch,
            committed=is_commit,
        )
        return EndTransaction(request, version, -1)

    init = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=TIMEOUT_MS)
    again = InitProducerIdRequest(
        transactional_id="t",
        transaction_timeout_ms=TIMEOUT_MS,
        producer_id=OWNER[0],
        producer_epoch=OWNER[1],
    )
    found: dict[str, tuple[object, int]] = {
        "InitProducerId": (InitProducer(init, 99), now_ms),
        "InitProducerId of the owner": (InitProducer(again, 99), now_ms),
        "AddPartitions": (AddPartitions("t", *OWNER, frozenset({B1}), version), now_ms),
        "EndTxn commit": (end(OWNER[1], is_commit=True), now_ms),
        "EndTxn abort": (end(OWNER[1], is_commit=False), now_ms),
        "EndTxn commit, epoch before": (end(OWNER[1] - 1, is_commit=True), now_ms),
        "EndTxn abort, epoch before": (end(OWNER[1] - 1, is_commit=False), now_ms),
        "Any request, later epoch": (end(OWNER[1] + 1, is_commit=True), now_ms),
        "Markers are written": (MarkersWritten("t", *OWNER), now_ms),
        "Timeout": (None, TIMEOUT_MS + 1),
        "Expiry": (None, IDLE_MS),
    }
    return found


def answer_of(replies: tuple[ShardReply, ...], *, waits: bool) -> str:
    if not replies:
        return "waits" if waits else ""
    response = replies[0].response
    code = response if isinstance(response, int) else getattr(response, "error_code", None)
    return "" if code is None else ErrorCode(code).name


def observed() -> set[Row]:
    """The transitions of the machine, for every state and event."""
    rows = set()
    states = [s for s in TransactionState if s.value <= TransactionState.COMPLETE_ABORT]
    for version in (1, 2):
        for state in (None, *states):
            for name, (what, now_ms) in events(version).items():
                shard = TransactionShard(TransactionSettings(expiration_ms=IDLE_MS))
                if state is not None:
                    known = transaction_in(state, version)
                    shard.replay(TransactionRecord("t", known))
                if name in TIMERS:
                    outcome = shard.fire(TIMERS[name], now_ms)
                else:
                    command = Command(request=what, request_id=1, api_version=5)
                    outcome = shard.handle(command, now_ms)
                label = UNKNOWN if state is None else state.label
                next_label, epoch = label, "+0"
                before = shard.transactions.get("t")
                changes = [record for record in outcome.records if record.transaction != before]
                for record in changes:
                    after = record.transaction
                    next_label = UNKNOWN if after is None else after.state.label
                    if after is not None:
                        epoch = "0" if state is None else f"+{after.producer_epoch - OWNER[1]}"
                if name in INTERNAL and not outcome.records:
                    continue
                is_asked = bool(outcome.effects)
                assert is_asked is (next_label.startswith("Prepare") and bool(changes)), (
                    "markers are asked for with every decision, and only then"
                )
                answer = answer_of(outcome.replies, waits=name not in INTERNAL)
                rows.add(Row(label, name, f"V{version}", next_label, epoch, answer))
    return rows


def test_the_table_of_transitions_agrees_with_the_machine() -> None:
    told, done = documented(), observed()
    assert told - done == set(), "the table has rows that are not true"
    assert done - told == set(), "the machine does what is not in the table"
