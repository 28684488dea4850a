"""Replication with real stores and sockets: what a leader acknowledges, its followers have.

Most of it with the workers of several nodes in one process; at the end with processes.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TypeAlias

import msgspec
import pytest
import zmq

from odradek.cluster.controller.commands import AlterPartition, decode_command
from odradek.cluster.metadata.delta import MetadataDelta
from odradek.cluster.metadata.image import (
    BrokerImage,
    BrokerListener,
    MetadataImage,
    PartitionImage,
)
from odradek.cluster.metadata.records import (
    ClusterCreated,
    PartitionChanged,
    PartitionsAdded,
    TopicCreated,
    encode_records,
)
from odradek.cluster.metadata.snapshot import image_records
from odradek.cluster.replication.messages import ReplicaFetchPartition, ReplicaFetchRequest
from odradek.node.bus.arena import Arena
from odradek.node.bus.curve import KeyPair, cluster_keys
from odradek.node.bus.endpoint import bind_endpoint, drain_with_identity, encode, ipc_address
from odradek.node.bus.messages import (
    UNSENT,
    AppendBytes,
    AppendReply,
    DeleteRecords,
    FromController,
    MetadataApplied,
    MetadataSnapshot,
    PartitionsAdvanced,
    RecordsDeleted,
    SubmitCommand,
    SubscribeMetadata,
    ToController,
)
from odradek.node.bus.replica_link import ReplicaLink
from odradek.node.bus.reply import Reply
from odradek.node.child import python_command
from odradek.node.config import WORKER_LISTENER_PREFIX
from odradek.node.router.logs import Logs
from odradek.node.router.worker_client import WorkerClient
from odradek.protocol.errors import ErrorCode
from odradek.storage.status import ReplicaRole
from odradek.storage.validation import AppendOrigin
from tests.support.child_process import CLUSTER_ID, ChildProcess, node_config
from tests.support.manual_router import reachable_count
from tests.support.ports import free_pair, free_port
from tests.support.replica_harness import TOPIC_ID, ReplicaHarness
from tests.support.stores import append, as_stored, batch_of, read_all
from tests.support.waiting import wait_until


def state(
    leader: int,
    epoch: int,
    *in_sync: int,
    replicas: tuple[int, ...] = (0, 1),
    partition_epoch: int = 0,
) -> PartitionImage:
    return PartitionImage(
        replicas, in_sync or replicas, leader, epoch, partition_epoch=partition_epoch
    )


MakeHarness: TypeAlias = Callable[..., ReplicaHarness]


@pytest.fixture
def make_harness(tmp_path: Path) -> Iterator[MakeHarness]:
    """Makes what is closed after the test, also after one that fails."""
    with ExitStack() as made:

        def make(
            node_count: int = 2,
            *,
            store_count: int = 1,
            keys: tuple[KeyPair, ...] = (),
            **settings: str,
        ) -> ReplicaHarness:
            harness = ReplicaHarness(
                tmp_path, node_count, store_count=store_count, keys=keys, **settings
            )
            made.callback(harness.close)
            return harness

        yield make


@pytest.fixture
def harness(make_harness: MakeHarness) -> ReplicaHarness:
    return make_harness()


def acknowledged(harness: ReplicaHarness, request_id: int, batch: bytes, leader: int = 0) -> None:
    """Append with acks=all and wait for the answer."""
    node = harness.nodes[leader]
    node.append(request_id, batch)
    answers: dict[int, int] = {}

    def has_answer() -> bool:
        answers.update(node.answers())
        return request_id in answers

    harness.run_until(has_answer, f"request {request_id} is answered")
    assert answers[request_id] == ErrorCode.NONE


def test_an_append_with_acks_all_is_answered_when_the_follower_has_it(
    harness: ReplicaHarness,
) -> None:
    harness.start(state(0, 1))
    leader, follower = harness.nodes
    leader.append(1, batch_of(3))
    leader.run()
    assert leader.answers() == {}
    assert leader.log().high_watermark == 0
    answers: dict[int, int] = {}
    harness.run_until(lambda: answers.update(leader.answers()) or bool(answers), "an answer")
    assert answers == {1: ErrorCode.NONE}
    assert follower.log().log_end_offset == 3
    harness.settle()
    assert follower.batches() == leader.batches() == [as_stored(batch_of(3), 0, 1)]
    status = follower.store().status
    assert status.high_watermark(follower.place()[1]) == 3
    assert status.role(follower.place()[1]) is ReplicaRole.FOLLOWER


def test_records_are_replicated_while_the_key_between_nodes_is_replaced(
    make_harness: MakeHarness,
) -> None:
    old, new = cluster_keys(["the secret of yesterday", "the secret of tomorrow"])
    harness = make_harness(keys=(old,))
    harness.start(state(0, 1))
    acknowledged(harness, 1, batch_of(3))
    request_id = 1
    for keys in [(old, new), (new, old), (new,)]:
        for node in harness.nodes:
            node.replication.change_keys(keys)
            request_id += 1
            acknowledged(harness, request_id, batch_of(3))
    assert harness.nodes[1].log().log_end_offset == 3 * request_id
    assert [node.replication.change_keys((new,)) for node in harness.nodes] == [None, None]


def test_a_follower_without_the_key_gets_nothing(make_harness: MakeHarness) -> None:
    old, new = cluster_keys(["the secret of yesterday", "the secret of tomorrow"])
    harness = make_harness(keys=(old,))
    harness.start(state(0, 1))
    leader, follower = harness.nodes
    leader.replication.change_keys((new,))
    leader.append(1, batch_of(3))
    server = leader.replication.server
    harness.run_until(lambda: server.refused_count > 5, "the follower is refused")
    assert leader.answers() == {}
    assert follower.log().log_end_offset == 0


def test_acks_1_does_not_wait_and_followers_take_no_produce(harness: ReplicaHarness) -> None:
    harness.start(state(0, 1))
    leader, follower = harness.nodes
    leader.append(1, batch_of(), acks=1)
    assert leader.answers() == {1: ErrorCode.NONE}
    follower.append(2, batch_of())
    assert follower.answers() == {2: ErrorCode.NOT_LEADER_OR_FOLLOWER}


def test_many_partitions_share_a_fetch_session_and_large_batches_are_copied_unchanged(
    make_harness: MakeHarness,
) -> None:
    harness = make_harness(store_count=2)
    harness.start(state(0, 1), partitions=6)
    leader, follower = harness.nodes
    for number in range(90):
        batch = batch_of(2, size=[10, 3_000, 300_000][number % 3], fill=number)
        leader.append(number, batch, number % 6, acks=1)
    for partition in range(6):
        harness.settle(partition)
        assert follower.batches(partition) == leader.batches(partition)
        assert len(follower.batches(partition)) == 15


def test_three_replicas_with_one_that_is_down(make_harness: MakeHarness) -> None:
    harness = make_harness(3)
    everybody = (0, 1, 2)
    harness.start(state(0, 1, replicas=everybody))
    acknowledged(harness, 1, batch_of())
    harness.nodes[2].stop()
    leader = harness.nodes[0]
    leader.append(2, batch_of())
    harness.run_until(
        lambda: harness.nodes[1].log().log_end_offset == 2, "the other follower has it"
    )
    assert leader.answers() == {}, "one that is in sync does not have it"
    in_sync, partition_epoch = {*everybody}, 0

    def isr() -> set[int]:
        """The ISR, after what the leader proposes was carried out, as a controller does."""
        nonlocal in_sync, partition_epoch
        proposals = leader.proposals.copy()
        leader.proposals.clear()
        for proposal in proposals:
            if proposal.partition_epoch == partition_epoch:
                in_sync = {broker for broker, _ in proposal.in_sync}
                partition_epoch += 1
                now = state(
                    0, 1, *sorted(in_sync), replicas=everybody, partition_epoch=partition_epoch
                )
                harness.change(now)
        return in_sync

    def is_left_out() -> bool:
        harness.now_ms += 200
        return 2 not in isr()

    # It lags for too long: the leader asks for an ISR without it and, upon that, answers.
    harness.run_until(is_left_out, "an ISR without it")
    harness.run_until(lambda: isr() == {0, 1} and leader.log().high_watermark == 2, "the rest")
    assert leader.answers() == {2: ErrorCode.NONE}
    # It comes back, catches up and is asked back in.
    harness.nodes[2].start()
    harness.run_until(lambda: isr() == {*everybody}, "it is asked back in")
    assert harness.nodes[2].log().log_end_offset == 2


def test_a_node_in_controlled_shutdown_does_not_join_the_isr(harness: ReplicaHarness) -> None:
    harness.decide(BrokerImage(1, 7, b"i" * 16, (), is_in_controlled_shutdown=True))
    harness.start(state(0, 1, 0))
    leader, follower = harness.nodes
    leader.append(1, batch_of())
    harness.run_until(lambda: follower.log().log_end_offset == 1, "it has everything")
    harness.now_ms += 2_000
    harness.settle()
    # It may be proposed that all stays as it is.
    assert {broker for each in leader.proposals for broker, _ in each.in_sync} <= {0}
    leader.proposals.clear()
    harness.change(state(0, 1, 0, partition_epoch=1))
    assert leader.proposals == []
    harness.decide(BrokerImage(1, 9, b"j" * 16, ()))
    for node in harness.nodes:
        node.follow()
    harness.run_until(lambda: bool(leader.proposals), "a proposal")
    assert {broker for broker, _ in leader.proposals[0].in_sync} == {0, 1}


@pytest.mark.parametrize("record_count", [0, 1])
def test_a_new_replica_that_fetches_before_the_leader_knows_of_it_joins_the_isr(
    make_harness: MakeHarness, record_count: int
) -> None:
    """Nothing is appended afterwards, so the follower has no other position to report."""
    harness = make_harness(3)
    harness.start(state(0, 1, replicas=(0, 2)))
    leader, follower = harness.nodes[:2]
    for request_id in range(record_count):
        acknowledged(harness, request_id, batch_of())
    new = state(0, 1, 0, 2, replicas=(0, 1, 2), partition_epoch=1)
    harness.decide(PartitionChanged(TOPIC_ID, 0, new))
    follower.follow()
    rounds = count()
    harness.run_until(lambda: next(rounds) > 100, "it has fetched all")
    assert follower.log().log_end_offset == record_count
    assert leader.proposals == []
    leader.follow()
    harness.run_until(lambda: bool(leader.proposals), "a proposal")
    assert {broker for broker, _ in leader.proposals[-1].in_sync} == {0, 1, 2}


def test_an_isr_below_min_insync_replicas_is_an_error_before_and_after_the_append(
    make_harness: MakeHarness,
) -> None:
    harness = make_harness(min_insync_replicas="2")
    harness.start(state(0, 1))
    leader, follower = harness.nodes
    follower.stop()
    leader.append(1, batch_of())
    before = leader.replication.isr_shrink_count, leader.replication.isr_expand_count
    assert leader.replication.under_min_isr_count == 0
    harness.change(state(0, 1, 0, partition_epoch=1))
    leader.run()
    after = leader.replication.isr_shrink_count, leader.replication.isr_expand_count
    assert (before, after) == ((0, 0), (1, 0))
    assert leader.replication.under_min_isr_count == 1
    assert leader.answers() == {1: ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
    leader.append(2, batch_of())
    assert leader.answers() == {2: ErrorCode.NOT_ENOUGH_REPLICAS}
    assert leader.log().high_watermark == 0


def test_a_delayed_append_fails_after_its_timeout_or_when_the_leader_resigns(
    harness: ReplicaHarness,
) -> None:
    harness.start(state(0, 1))
    leader, follower = harness.nodes
    follower.stop()
    leader.append(1, batch_of(), timeout_ms=1_000)
    leader.append(2, batch_of(), timeout_ms=60_000)
    harness.now_ms += 1_001
    leader.run()
    assert leader.answers() == {1: ErrorCode.REQUEST_TIMED_OUT}
    harness.change(state(1, 2))
    leader.run()
    assert leader.answers() == {2: ErrorCode.NOT_LEADER_OR_FOLLOWER}


def test_a_restarted_leader_truncates_records_that_only_it_had(harness: ReplicaHarness) -> None:
    harness.start(state(0, 1))
    first, second = harness.nodes
    acknowledged(harness, 1, batch_of(2, fill=1))
    harness.settle()
    second.stop()
    for number in range(5):
        first.append(10 + number, batch_of(2, fill=100 + number), acks=1)
    assert first.log().log_end_offset == 12
    first.stop()
    # The other one leads, with what was acknowledged, and goes on.
    harness.change(state(1, 2, 1))
    second.start()
    harness.change(state(1, 2, 1, partition_epoch=1))
    acknowledged(harness, 2, batch_of(3, fill=7), leader=1)
    first.start()
    harness.settle()
    expected = [as_stored(batch_of(2, fill=1), 0, 1), as_stored(batch_of(3, fill=7), 2, 2)]
    assert first.batches() == second.batches() == expected
    assert first.log().epochs.entries == ((1, 0), (2, 2))


def test_a_restarted_leader_has_its_former_high_watermark(harness: ReplicaHarness) -> None:
    harness.start(state(0, 1))
    leader, follower = harness.nodes
    acknowledged(harness, 1, batch_of(2))
    follower.stop()
    leader.append(2, batch_of(3), acks=1)
    leader.stop()
    leader.start()
    log = leader.log()
    assert (log.high_watermark, log.log_end_offset) == (2, 5)
    follower.start()
    harness.settle()
    assert log.high_watermark == 5


def test_a_follower_behind_the_leaders_log_start_restarts_there(
    harness: ReplicaHarness,
) -> None:
    harness.start(state(0, 1))
    leader, follower = harness.nodes
    acknowledged(harness, 1, batch_of(2))
    follower.stop()
    harness.change(state(0, 1, 0, partition_epoch=1))
    for number in range(6):
        leader.append(10 + number, batch_of(4, fill=number))
    # Offset 15 lies inside of a batch, which begins at 14.
    code, _ = leader.store().log_starts.delete_records(leader.place()[1], 15)
    assert code is ErrorCode.NONE
    follower.start()
    harness.settle()
    assert follower.batches() == leader.batches()
    assert follower.log().log_end_offset == 26
    harness.run_until(lambda: follower.log().log_start_offset == 15, "the log start follows")


def deletion(
    harness: ReplicaHarness, request_id: int, offset: int, timeout_ms: int = 60_000
) -> None:
    leader = harness.nodes[0]
    request = DeleteRecords(request_id, *leader.place(), offset, timeout_ms)
    leader.run([(leader.router, request)])


def deleted(harness: ReplicaHarness, request_id: int) -> RecordsDeleted:
    """Let the nodes run until that deletion is answered."""
    replies = harness.nodes[0].router.replies

    def answers() -> list[RecordsDeleted]:
        return [
            each
            for each in replies
            if isinstance(each, RecordsDeleted) and each.request_id == request_id
        ]

    harness.run_until(lambda: bool(answers()), "the deletion is answered")
    return answers()[0]


def starts(harness: ReplicaHarness) -> list[int]:
    return [node.log().log_start_offset for node in harness.running()]


def brokers(harness: ReplicaHarness, *fenced: int) -> None:
    """The controller publishes which brokers are alive."""
    for node in harness.nodes:
        is_fenced = node.node_id in fenced
        harness.decide(BrokerImage(node.node_id, 1, bytes(16), (), is_fenced=is_fenced))
    for node in harness.running():
        node.follow()


def test_delete_records_is_answered_when_the_followers_logs_start_there_too(
    harness: ReplicaHarness,
) -> None:
    harness.start(state(0, 1))
    brokers(harness)
    acknowledged(harness, 1, batch_of(5))
    harness.settle()
    deletion(harness, 2, 3)
    assert starts(harness) == [3, 0]
    assert not any(isinstance(reply, RecordsDeleted) for reply in harness.nodes[0].router.replies)
    assert deleted(harness, 2) == RecordsDeleted(2, ErrorCode.NONE, 3)
    assert starts(harness) == [3, 3]
    # Again there is nothing to wait for.
    deletion(harness, 3, 3)
    assert deleted(harness, 3) == RecordsDeleted(3, ErrorCode.NONE, 3)


def test_delete_records_does_not_wait_for_fenced_replicas_and_times_out(
    harness: ReplicaHarness,
) -> None:
    harness.start(state(0, 1))
    brokers(harness)
    acknowledged(harness, 1, batch_of(5))
    harness.settle()
    harness.nodes[1].stop()
    deletion(harness, 2, 2, timeout_ms=1_000)
    assert deleted(harness, 2) == RecordsDeleted(2, ErrorCode.REQUEST_TIMED_OUT, 0)
    deletion(harness, 3, 3)
    brokers(harness, 1)
    assert deleted(harness, 3) == RecordsDeleted(3, ErrorCode.NONE, 3)


def test_delete_records_fails_when_the_leader_resigns(harness: ReplicaHarness) -> None:
    harness.start(state(0, 1))
    brokers(harness)
    acknowledged(harness, 1, batch_of(5))
    harness.settle()
    harness.nodes[1].stop()
    deletion(harness, 2, 2)
    harness.change(state(1, 2))
    assert deleted(harness, 2) == RecordsDeleted(2, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


def test_records_that_a_former_leader_deleted_stay_deleted(harness: ReplicaHarness) -> None:
    harness.start(state(0, 1))
    brokers(harness)
    acknowledged(harness, 1, batch_of(5))
    harness.settle()
    # The leader alone has deleted, when the other one is elected.
    code, _ = harness.nodes[0].store().log_starts.delete_records(harness.nodes[0].place()[1], 4)
    assert code == ErrorCode.NONE
    harness.change(state(1, 2))
    harness.run_until(
        lambda: starts(harness) == [4, 4], "the new leader takes its follower's start"
    )


def test_the_log_start_of_an_idle_partition_reaches_the_followers(harness: ReplicaHarness) -> None:
    """As retention moves it: without a request and without an append."""
    harness.start(state(0, 1))
    acknowledged(harness, 1, batch_of(5))
    harness.settle()
    number = harness.nodes[0].place()[1]
    harness.nodes[0].store().log_starts.move({number: 5})
    harness.run_until(lambda: starts(harness) == [5, 5], "the follower's log starts there")


def test_the_high_watermark_of_an_idle_partition_reaches_the_followers_and_their_readers(
    harness: ReplicaHarness,
) -> None:
    harness.start(state(0, 1))
    follower = harness.nodes[1]
    harness.settle()
    store, number = follower.place()
    follower.store().status.set_watch(number)
    acknowledged(harness, 1, batch_of(5))
    # Nothing comes after it that could carry the news.
    harness.run_until(lambda: follower.log().high_watermark == 5, "the follower has heard of it")
    assert PartitionsAdvanced(store, (number,)) in follower.broadcast


def test_followers_reconnect_to_a_restarted_leader(harness: ReplicaHarness) -> None:
    harness.start(state(0, 1))
    leader, _ = harness.nodes
    acknowledged(harness, 1, batch_of())
    leader.stop()
    leader.start()
    acknowledged(harness, 2, batch_of())
    harness.settle()


def test_a_partition_with_a_new_leader_is_fetched_from_it_at_once(harness: ReplicaHarness) -> None:
    harness.start(state(0, 1), partitions=2)
    first, second = harness.nodes
    acknowledged(harness, 1, batch_of())
    # Both nodes lead one now; each follows the other.
    harness.change(state(1, 2), partition=1)
    second.append(2, batch_of(4), 1)
    harness.run_until(lambda: second.answers() == {2: ErrorCode.NONE}, "the other way round")
    harness.settle(1)
    assert first.batches(1) == second.batches(1)
    harness.change(state(0, 3), partition=1)
    first.append(3, batch_of(2), 1)
    harness.run_until(lambda: first.answers() == {3: ErrorCode.NONE}, "and back")
    harness.settle(1)
    assert first.log(1).epochs.entries[-1] == (3, 4)


def test_a_replica_that_was_moved_away_is_deleted_and_a_new_one_is_filled(
    make_harness: MakeHarness,
) -> None:
    harness = make_harness(3)
    harness.start(state(0, 1))
    acknowledged(harness, 1, batch_of(5))
    moving = state(0, 1, 0, 1, replicas=(0, 1, 2), partition_epoch=1)
    harness.change(moving)
    harness.run_until(
        lambda: harness.nodes[2].log().log_end_offset == 5, "the new replica is filled"
    )
    assert harness.nodes[2].log().epochs.entries == ((1, 0),)
    harness.change(state(0, 1, 0, 2, replicas=(0, 2), partition_epoch=2))
    assert harness.nodes[1].partitions.location_of(TOPIC_ID, 0) is None
    acknowledged(harness, 2, batch_of())


def test_a_corrupt_batch_is_not_appended_and_fetched_again(harness: ReplicaHarness) -> None:
    harness.start(state(0, 1))
    _, follower = harness.nodes
    turn = follower.store().begin(harness.now_ms)
    broken = bytearray(as_stored(batch_of(), 0, 1))
    broken[-1] ^= 1
    result = append(turn, follower.place()[1], bytes(broken), origin=AppendOrigin.REPLICATION)
    assert result.error_code is ErrorCode.CORRUPT_MESSAGE
    turn.abort()
    acknowledged(harness, 1, batch_of())


def test_a_partition_with_one_replica_is_not_replicated(
    harness: ReplicaHarness,
) -> None:
    harness.start(state(0, 1, replicas=(0,)))
    leader = harness.nodes[0]
    assert not leader.replication.is_active
    leader.append(1, batch_of())
    assert leader.answers() == {1: ErrorCode.NONE}
    assert leader.log().high_watermark == 1


# -- real processes --------------------------------------------------------------------------------


class Node:
    """A worker process of node `node_id`, whose controller and router the test plays."""

    def __init__(self, folder: Path, node_id: int, ports: Sequence[int]) -> None:
        """`ports` are those of the peers by node id; behind each is a worker's."""
        folder.mkdir()
        config = node_config(
            folder,
            node_id=str(node_id),
            cluster_id=CLUSTER_ID,
            peers=",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(ports)),
            listeners=f"127.0.0.1:{free_port()}",
        )
        self.config = msgspec.structs.replace(config, store_count=2)
        self._config_path = self.config.run_folder / "config.json"
        self.config.save_json(self._config_path)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = bind_endpoint(
            self._context, ipc_address(self.config.run_folder, "controller")
        )
        self._decode = msgspec.msgpack.Decoder(list[ToController]).decode
        self._unread: list[ToController] = []
        self.logs = Logs(self.config.stores_folders, 2)
        self.start()

    def start(self) -> None:
        command = python_command("odradek.node.worker.process", str(self._config_path), "0")
        self.worker = ChildProcess(command, self.config.run_folder / "worker.log")

    def hear(
        self, kind: type[SubscribeMetadata] | type[MetadataApplied] | type[SubmitCommand]
    ) -> ToController:
        """The next message of this type; earlier messages are skipped."""

        def message() -> ToController | None:
            for _, payload in drain_with_identity(self._socket):
                self._unread.extend(self._decode(payload))
            while self._unread:
                found = self._unread.pop(0)
                if isinstance(found, kind):
                    return found
            return None

        found = wait_until(message, what=f"the worker says {kind}")
        assert found is not None
        return found

    def say(self, message: FromController) -> None:
        self._socket.send_multipart((b"worker-0", encode([message])))

    def tell(self, image: MetadataImage) -> None:
        self.say(MetadataSnapshot(image.offset, (encode_records(image_records(image)),)))
        self.hear(MetadataApplied)

    def greet(self, image: MetadataImage) -> None:
        self.hear(SubscribeMetadata)
        self.tell(image)

    def ends(self, partition: int) -> tuple[int, int]:
        """High watermark and log end."""
        place = self.logs.locate(TOPIC_ID, partition)
        assert place is not None
        reader = self.logs.reader(place[0])
        assert reader is not None
        return reader.status.high_watermark(place[1]), reader.status.log_end_offset(place[1])

    def batches(self, partition: int) -> list[bytes]:
        place = self.logs.locate(TOPIC_ID, partition)
        assert place is not None
        reader = self.logs.reader(place[0])
        assert reader is not None
        return read_all(reader, place[1])

    def close(self) -> None:
        self.logs.close()
        self.worker.kill()
        self._socket.close(0)
        self._context.term()


class ScriptedRouter:
    """The worker client of a router in the test's loop, with one node's worker."""

    def __init__(self, node: Node) -> None:
        self.loop = asyncio.new_event_loop()
        run_folder = node.config.run_folder
        arena_path = run_folder / "arena"
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._arena = Arena.create(arena_path, 64 << 20)
        self.worker_client = WorkerClient(
            loop=self.loop,
            context=self._context,
            address=ipc_address(run_folder, "router-0"),
            wakeup_path=run_folder / "router-0.bell",
            worker_count=1,
            arena=self._arena,
            incarnation=1,
        )
        self.node = node

    def wait_for_worker(self) -> None:
        def has_come() -> int:
            self.loop.run_until_complete(asyncio.sleep(0))
            return reachable_count(self.worker_client)

        wait_until(has_come, what="the worker greets")

    def append(self, partition: int, batch: bytes, *, acks: int = -1) -> "Reply[AppendReply]":
        place = self.node.logs.locate(TOPIC_ID, partition)
        assert place is not None
        return self.worker_client.append_bytes(
            AppendBytes(UNSENT, *place, batch, is_client=True, acks=acks)
        )

    def wait(self, *replies: "Reply[AppendReply]") -> list[AppendReply]:
        def are_done() -> bool:
            self.loop.run_until_complete(asyncio.sleep(0))
            return all(reply.is_done for reply in replies)

        wait_until(are_done, what="all answers")
        return [reply.result() for reply in replies]

    def close(self) -> None:
        self.worker_client.close()
        self._context.term()
        self.loop.close()
        self._arena.close()


def image_of(*states: PartitionImage, offset: int, ports: Sequence[int]) -> MetadataImage:
    """Nodes by the ports of their peers, and one topic."""
    delta = MetadataDelta(MetadataImage.empty())
    delta.replay(ClusterCreated(CLUSTER_ID))
    for node_id, port in enumerate(ports):
        worker = BrokerListener(f"{WORKER_LISTENER_PREFIX}0", "127.0.0.1", port + 1)
        delta.replay(BrokerImage(node_id, 1, bytes([node_id]) * 16, (worker,)))
    delta.replay(TopicCreated("topic", TOPIC_ID))
    delta.replay(PartitionsAdded(TOPIC_ID, 0, states))
    return delta.apply(offset)


@pytest.mark.e2e
def test_a_worker_without_replicas_answers_an_early_follower_and_sleeps(
    tmp_path: Path,
) -> None:
    ports = [free_pair(), free_pair()]
    address = f"tcp://127.0.0.1:{ports[0] + 1}"
    node = Node(tmp_path / "0", 0, ports)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    link = ReplicaLink(context, address, b"1-0-1", ())
    try:
        node.greet(image_of(state(0, 1, replicas=(0,)), offset=1, ports=ports))
        wait_until(link.take_connected, what="the connection")
        for request_id in (1, 2):
            wanted = ReplicaFetchPartition(request_id, TOPIC_ID, 0, 9, 0, -1)
            link.send(ReplicaFetchRequest(request_id, CLUSTER_ID, 1, -1, 0, True, (wanted,)))
            answer = wait_until(lambda: next(link.responses(), None), what="an answer")
            assert answer is not None
            (part,) = answer.fetched.partitions
            assert part.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    finally:
        link.close()
        context.term()
        node.close()


@pytest.mark.e2e
def test_a_killed_leader_loses_no_acknowledged_record_and_truncates_after_its_restart(
    tmp_path: Path,
) -> None:
    ports = [free_pair(), free_pair()]
    first, second = (Node(tmp_path / str(node), node, ports) for node in range(2))
    router = ScriptedRouter(first)
    try:
        image = image_of(state(0, 1), state(0, 1), offset=1, ports=ports)
        for node in (first, second):
            node.greet(image)
        router.wait_for_worker()
        batches = [batch_of(3, size=2_000, fill=fill) for fill in range(40)]
        answers = router.wait(*(router.append(at % 2, batch) for at, batch in enumerate(batches)))
        assert [answer.error_code for answer in answers] == [ErrorCode.NONE] * 40
        assert [second.ends(partition)[1] for partition in (0, 1)] == [60, 60]
        acknowledged_then = [first.batches(partition) for partition in (0, 1)]
        # The follower is away; what the leader takes now it has alone.
        second.worker.kill()
        alone = [router.append(0, batch_of(fill=200 + n), acks=1) for n in range(5)]
        router.wait(*alone)
        assert first.ends(0) == (60, 65)
        first.worker.kill()
        # The other one leads with what was acknowledged.
        image = image_of(state(1, 2, 1), state(1, 2, 1), offset=2, ports=ports)
        second.start()
        second.hear(SubscribeMetadata)
        second.say(MetadataSnapshot(image.offset, (encode_records(image_records(image)),)))
        # It wants older proposals to be void, and has its way.
        assert isinstance(second.hear(SubmitCommand), SubmitCommand)
        sure = state(1, 2, 1, partition_epoch=1)
        image = image_of(sure, sure, offset=3, ports=ports)
        second.tell(image)
        wait_until(lambda: second.ends(0) == (60, 60), what="the new leader stands")
        assert [second.batches(partition) for partition in (0, 1)] == acknowledged_then
        first.start()
        first.greet(image)
        wait_until(lambda: first.ends(0) == (60, 60), what="the old one is cut")
        assert first.batches(0) == acknowledged_then[0]
        # Caught up, it is asked back into the ISR.
        submit = second.hear(SubmitCommand)
        assert isinstance(submit, SubmitCommand)
        command = decode_command(submit.command)
        assert isinstance(command, AlterPartition)
        wanted = {change.partition: change.in_sync for change in command.changes}
        assert {replica.broker_id for replica in wanted.popitem()[1]} == {0, 1}
        metrics = second.worker.metrics()
        assert metrics["odradek_under_replicated_partitions"] == 2
    finally:
        router.close()
        first.close()
        second.close()


def test_a_leader_that_restarts_within_its_epoch_invalidates_older_proposals(
    harness: ReplicaHarness,
) -> None:
    """The former worker may have proposed to add the follower, which may lead soon."""
    harness.start(state(0, 1, 0))
    leader, follower = harness.nodes
    follower.stop()
    leader.append(1, batch_of())
    harness.run_until(lambda: bool(leader.proposals), "it asks for the ISR as it is")
    assert leader.proposals[0].in_sync == ((0, -1),)
    assert (leader.log().log_end_offset, leader.log().high_watermark) == (1, 0)
    harness.change(state(0, 1, 0, partition_epoch=1))
    harness.run_until(lambda: leader.log().high_watermark == 1, "nothing older holds any more")


def test_a_shorter_lag_limit_removes_a_follower_sooner(make_harness: MakeHarness) -> None:
    harness = make_harness()
    harness.start(state(0, 1, 0, 1))
    leader, follower = harness.nodes
    harness.settle()
    follower.stop()
    leader.append(1, batch_of())
    harness.now_ms += 2_000
    leader.run()
    assert leader.proposals == []
    assert leader.replication is not None
    leader.replication.set_lag_max_ms(1_000)
    leader.run()
    assert [{broker for broker, _ in each.in_sync} for each in leader.proposals] == [{0}]
