"""The watchdog with real stores and coordinators: hanging transactions, and others."""

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from odradek.cluster.metadata.image import NO_LEADER, ConfigResourceType
from odradek.cluster.metadata.topic_names import TRANSACTION_STATE
from odradek.coordinator.group.requests import CommitInTransaction
from odradek.node.bus.reply import drive
from odradek.node.router.transactions.watchdog import Watchdog
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.support.log_lines import log_lines
from tests.support.stores import NOW_MS
from tests.support.transaction_harness import TOPIC, TransactionalClient, TransactionHarness
from tests.support.waiting import wait_until

STATIC = {
    "transaction.partition.verification.enable": "false",
    "transaction.max.timeout.ms": "60000",
    "transaction.watchdog.margin.ms": "1000",
}
ABORT = "transaction.watchdog.abort.enable"


class WatchdogHarness:
    """A harness with its watchdog."""

    def __init__(self, folder: Path, *, abort: bool) -> None:
        self.harness = TransactionHarness(folder, static={**STATIC, ABORT: str(abort).lower()})
        services = self.harness.services
        services.now_ms = lambda: NOW_MS + 61_001
        self.watchdog = Watchdog(
            services.metadata,
            services.logs,
            services.worker_client,
            self.harness.client,
            services.markers,
            lambda: services.now_ms(),
            self.harness.loop,
        )

    def run_round(self, times: int = 1) -> None:
        for _ in range(times):
            done: asyncio.Future[None] = self.harness.loop.create_future()
            self.harness.loop.call_soon(drive, self.watchdog.run_round(), partial(_finish, done))
            self.harness.wait(done)

    def hang(self) -> TransactionalClient:
        """A client whose last batch is appended after the end of its transaction."""
        client = TransactionalClient(self.harness, version=1)
        client.init()
        client.add(0)
        assert client.produce(0) == [ErrorCode.NONE]
        client.end()
        self.harness.wait_for("CompleteCommit")
        assert client.produce(0) == [ErrorCode.NONE]
        assert self.harness.last_stable_offset() == 2
        return client


def _finish(done: asyncio.Future[None], _: None, error: BaseException | None) -> None:
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(None)


@pytest.fixture
def detecting(tmp_path: Path) -> Iterator[WatchdogHarness]:
    detecting = WatchdogHarness(tmp_path, abort=False)
    with detecting.harness:
        yield detecting


@pytest.fixture
def aborting(tmp_path: Path) -> Iterator[WatchdogHarness]:
    aborting = WatchdogHarness(tmp_path, abort=True)
    with aborting.harness:
        yield aborting


def test_a_hanging_transaction_is_logged_once_and_not_aborted(
    detecting: WatchdogHarness, caplog: pytest.LogCaptureFixture
) -> None:
    client = detecting.hang()
    detecting.run_round(2)
    assert detecting.watchdog.hanging_count == 0
    detecting.run_round(3)
    assert detecting.watchdog.hanging_count == 1
    told = [entry for entry in log_lines(caplog) if "hanging" in entry]
    assert len(told) == 1
    assert f"producer_id={client.producer_id} " in told[0]
    assert "odradek txn abort t 0 --start-offset 2" in told[0]
    assert (detecting.harness.last_stable_offset(), detecting.watchdog.ended_count) == (2, 0)


def test_a_hanging_transaction_is_aborted_if_configured(aborting: WatchdogHarness) -> None:
    aborting.hang()
    aborting.run_round(3)
    assert aborting.harness.last_stable_offset() == aborting.harness.end_offset() == 4
    assert (aborting.watchdog.hanging_count, aborting.watchdog.ended_count) == (0, 1)


def test_hanging_offsets_are_aborted_by_the_group_shard(aborting: WatchdogHarness) -> None:
    harness = aborting.harness
    client = TransactionalClient(harness, version=1)
    client.init()
    client.add_offsets()
    assert client.commit_offset(7) == ErrorCode.NONE
    client.end()
    harness.wait_for("CompleteCommit")
    # A broker without verification appends this.
    partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=8)
    commit = TxnOffsetCommitRequest(
        transactional_id="tx",
        group_id="g",
        producer_id=client.producer_id,
        producer_epoch=client.producer_epoch,
        topics=[TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[partition])],
    )
    harness.coordinators.call("g", CommitInTransaction(commit, is_verified=True))
    wait_until(
        lambda: client.fetch_offset() == -ErrorCode.UNSTABLE_OFFSET_COMMIT,
        what="the offset is pending",
    )
    # The coordinator's records have the wall clock's time.
    harness.services.now_ms = lambda: time.time_ns() // 1_000_000 + 120_000
    aborting.run_round(3)
    assert aborting.watchdog.ended_count == 1
    assert client.fetch_offset() == 7


def test_a_transaction_of_a_coordinator_is_not_aborted(aborting: WatchdogHarness) -> None:
    client = TransactionalClient(aborting.harness, version=1)
    client.init()
    client.add(0)
    client.produce(0)
    aborting.run_round(5)
    assert (aborting.watchdog.hanging_count, aborting.watchdog.ended_count) == (0, 0)
    assert aborting.harness.last_stable_offset() == 0


def test_a_transaction_that_adds_the_partition_again_is_not_aborted(
    aborting: WatchdogHarness,
) -> None:
    client = aborting.hang()
    aborting.run_round(2)
    client.add(0)
    aborting.run_round(3)
    assert aborting.watchdog.ended_count == 0
    client.end()
    aborting.harness.wait_for("CompleteCommit")
    assert aborting.harness.last_stable_offset() == aborting.harness.end_offset()


def test_nothing_is_aborted_while_a_coordinator_is_unavailable(aborting: WatchdogHarness) -> None:
    aborting.hang()
    aborting.run_round(2)
    aborting.harness.lead(TRANSACTION_STATE, 1, leader=NO_LEADER)
    aborting.run_round(3)
    assert (aborting.watchdog.hanging_count, aborting.watchdog.ended_count) == (0, 0)
    assert aborting.harness.last_stable_offset() == 2


def test_a_new_interval_takes_effect_at_once(tmp_path: Path) -> None:
    detecting = WatchdogHarness(tmp_path, abort=True)
    with detecting.harness as harness:
        detecting.hang()
        detecting.watchdog.start()
        harness.controller.set_config(
            ConfigResourceType.BROKER, "", **{"transaction.watchdog.interval.ms": "100"}
        )
        harness.follow()
        detecting.watchdog.follow()

        def is_ended() -> bool:
            harness.turn_loop(0.01)
            return detecting.watchdog.ended_count == 1

        wait_until(is_ended, what="the watchdog has come round three times")
        detecting.watchdog.close()
