"""The controller's process: commands are decided, persisted, published, applied and answered.

The tests play the other processes of the node over real sockets.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec
import pytest
import zmq

from odradek.cluster.controller.commands import (
    AllocateProducerIds,
    Command,
    CommandReply,
    ConfigOperation,
    CreateTopics,
    DeleteTopics,
    IncrementalAlterConfigs,
    NewTopic,
    ProducerIdsReply,
    ResourceOperations,
    TopicReference,
    TopicsReply,
    decode_reply,
    encode_command,
)
from odradek.cluster.metadata.image import ConfigResourceType, MetadataImage
from odradek.cluster.metadata.records import FeatureLevelChanged, encode_records
from odradek.node.bus.endpoint import DealerLink, drain, encode, ipc_address
from odradek.node.bus.messages import (
    CommandSubmitted,
    FromController,
    LivenessCheck,
    MetadataApplied,
    MetadataRecords,
    MetadataSnapshot,
    NodesUnreachable,
    QuorumDescribed,
    SubmitCommand,
    SubscribeMetadata,
    ToController,
)
from odradek.node.bus.metadata_feed import apply_metadata
from odradek.node.child import python_command
from odradek.node.config import NodeConfig
from odradek.node.controller.clean_shutdown import NAME
from odradek.node.observability import ResizeWorkers
from odradek.protocol.errors import ErrorCode
from odradek.storage.metadata_log import MetadataLog, MetadataLogEntry
from odradek.storage.settings import Durability
from tests.support.child_process import CLUSTER_ID, ChildProcess, node_config
from tests.support.disks import small_disk
from tests.support.metadata_history import have_same_content
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"
T = TypeVar("T")
FAR_MS = 2**62
SNAPSHOT_ENTRIES = 40
STALE = AllocateProducerIds(0, -5)
"""A command that is refused at once, whatever the followers do."""


class Follower:
    """A process of the node. It applies metadata only when the test says so."""

    def __init__(self, context: Context, config: NodeConfig, name: str) -> None:
        self.name = name
        self.image = MetadataImage.empty()
        self.heard: list[FromController] = []
        self.answers: dict[int, CommandSubmitted] = {}
        self._link = DealerLink(
            context, ipc_address(config.run_folder, "controller"), name.encode()
        )
        self._decode = msgspec.msgpack.Decoder(list[FromController]).decode
        self._next_id = 0

    def follow(self, offset: int | None = None, *, cluster_id: str = "") -> None:
        """Greet a controller that has just come or come back."""
        wait_until(self._link.take_connected, what=f"{self.name} is connected")
        have = self.image.offset if offset is None else offset
        self.send(SubscribeMetadata(self.name, 1, have, cluster_id))

    def join(self) -> None:
        """Greet, and carry out what there is."""
        self.follow()
        self.catch_up()
        self.apply()

    def send(self, *messages: ToController) -> None:
        self._link.socket.send(encode(list(messages)))

    def listen(self) -> None:
        """Take in what has come."""
        for payload in drain(self._link.socket):
            for message in self._decode(payload):
                if isinstance(message, CommandSubmitted):
                    self.answers[message.request_id] = message
                    continue
                assert not isinstance(message, QuorumDescribed | NodesUnreachable | LivenessCheck)
                self.heard.append(message)
                image = apply_metadata(self.image, message)
                assert image is not None, "entries are missing"
                self.image = image

    def until(self, condition: Callable[[], T], what: str) -> T:
        def holds() -> T:
            self.listen()
            return condition()

        return wait_until(holds, what=what)

    def catch_up(self, offset: int | None = None) -> None:
        """Wait for metadata: any, or up to an offset."""
        before = len(self.heard)
        self.until(
            lambda: len(self.heard) > before if offset is None else self.image.offset >= offset,
            f"{self.name} hears of metadata",
        )

    def apply(self) -> None:
        """Say that all that was heard is carried out."""
        self.send(MetadataApplied(self.name, self.image.offset))

    def submit(self, *commands: Command, deadline_ms: int = FAR_MS) -> list[int]:
        """Send commands as one message; their request ids."""
        first = self._next_id + 1
        self._next_id += len(commands)
        ids = list(range(first, self._next_id + 1))
        self.send(
            *(
                SubmitCommand(request_id, encode_command(command), deadline_ms)
                for request_id, command in zip(ids, commands, strict=True)
            )
        )
        return ids

    def answer(self, request_id: int) -> CommandSubmitted:
        """The answer to a command, when it has come."""
        return self.until(lambda: self.answers.get(request_id), f"answer {request_id}")  # type: ignore[return-value]  # truthy

    def do(self, command: Command) -> CommandReply:
        """Have a command carried out, with this follower as the only one."""
        (request_id,) = self.submit(command)
        before = self.image.offset

        def is_answered() -> bool:
            nonlocal before
            if self.image.offset != before:
                before = self.image.offset
                self.apply()
            return request_id in self.answers

        self.until(is_answered, f"answer {request_id}")
        answer = self.answers[request_id]
        assert answer.error_code == ErrorCode.NONE, answer
        return decode_reply(answer.reply)

    def is_answered(self, request_id: int) -> bool:
        """Whether the controller has answered a command by now: a whole turn later it would have.

        Two commands that are refused at once show that the turn is over.
        """
        for _ in range(2):
            (probe,) = self.submit(STALE)
            assert self.answer(probe).error_code == ErrorCode.STALE_BROKER_EPOCH
        return request_id in self.answers

    def close(self) -> None:
        self._link.close()


class RunningController:
    """A controller process, its folder, and its subscribers."""

    def __init__(self, folder: Path) -> None:
        self.config = node_config(folder)
        self.context: Context = zmq.Context()
        self.followers: list[Follower] = []
        self._config_path = self.config.run_folder / "config.json"
        self.config.save_json(self._config_path)
        self.process = self._start()

    def _start(self) -> ChildProcess:
        process = self.spawn()
        process.wait_until_ready()
        return process

    def spawn(self) -> ChildProcess:
        """Start the process, which may end before it is ready."""
        # The module's main, with a smaller bound: 20,000 entries take their time.
        program = (
            "from odradek.node.controller import metadata_loader, process;"
            f"metadata_loader.SNAPSHOT_ENTRIES = {SNAPSHOT_ENTRIES};"
            "process.main()"
        )
        command = [sys.executable, "-P", "-c", program, str(self._config_path)]
        assert python_command("x")[:2] == command[:2]
        return ChildProcess(command, self.config.run_folder / "controller.log")

    def configure(self, **fields: object) -> None:
        """Have the next start use another configuration."""
        self.config = msgspec.structs.replace(self.config, **fields)
        self.config.save_json(self._config_path)

    def follower(self, name: str) -> Follower:
        follower = Follower(self.context, self.config, name)
        self.followers.append(follower)
        return follower

    def leave(self, follower: Follower) -> None:
        """The process dies."""
        self.followers.remove(follower)
        follower.close()

    def restart(self, *, kills: bool, is_new_run: bool = False) -> None:
        """`is_new_run`: as if the whole node was restarted, with an empty run folder."""
        if kills:
            self.process.kill()
        else:
            assert self.process.stop() == 0
        if is_new_run:
            (self.config.run_folder / "incarnation").unlink()
        self.process = self._start()

    def close(self) -> None:
        for follower in self.followers:
            follower.close()
        self.process.kill()
        self.context.destroy(0)


@pytest.fixture
def fixture(tmp_path: Path) -> Iterator[RunningController]:
    fixture = RunningController(tmp_path)
    yield fixture
    fixture.close()


def topics(*numbers: int, attempt: int = 0) -> CreateTopics:
    """Topics with ids of this attempt: a repeated command would be recognized by them."""
    return CreateTopics(
        tuple(NewTopic(f"t{n}", (attempt << 32 | n).to_bytes(16), 1, 1) for n in numbers)
    )


def names(image: MetadataImage) -> list[str]:
    return sorted(image.topics_by_name)


def codes(reply: CommandReply) -> list[int]:
    assert isinstance(reply, TopicsReply)
    return [result.error_code for result in reply.results]


def test_a_new_cluster_has_its_id_and_this_node(fixture: RunningController) -> None:
    router = fixture.follower("router-0")
    router.join()
    (first,) = router.heard
    assert isinstance(first, MetadataSnapshot)
    assert router.image.cluster_id == CLUSTER_ID
    assert list(router.image.brokers) == [0]


def test_a_command_is_answered_when_every_process_has_applied_it(
    fixture: RunningController,
) -> None:
    router, worker = fixture.follower("router-0"), fixture.follower("worker-0")
    router.join()
    worker.join()
    (request_id,) = router.submit(topics(1))
    router.catch_up()
    worker.catch_up()
    assert names(router.image) == names(worker.image) == ["t1"]
    assert not router.is_answered(request_id)
    router.apply()
    assert not router.is_answered(request_id), "the worker has not made the partition yet"
    worker.apply()
    assert codes(decode_reply(router.answer(request_id).reply)) == [ErrorCode.NONE]


def test_commands_of_one_message_are_decided_in_order(fixture: RunningController) -> None:
    router = fixture.follower("router-0")
    router.join()
    first, second, third = router.submit(topics(1), topics(1, attempt=1), topics(2, 1, attempt=2))
    router.catch_up()
    router.apply()
    replies = [decode_reply(router.answer(number).reply) for number in (first, second, third)]
    exists = ErrorCode.TOPIC_ALREADY_EXISTS
    assert [codes(reply) for reply in replies] == [[ErrorCode.NONE], [exists], [0, exists]]


def test_a_refused_command_is_answered_at_once_and_changes_nothing(
    fixture: RunningController,
) -> None:
    router, idle = fixture.follower("router-0"), fixture.follower("worker-0")
    router.join()
    idle.follow()
    before = router.image.offset
    (request_id,) = router.submit(STALE)
    answer = router.answer(request_id)
    assert (answer.error_code, answer.reply) == (ErrorCode.STALE_BROKER_EPOCH, b"")
    router.listen()
    assert router.image.offset == before


def test_a_command_times_out_at_its_deadline(fixture: RunningController) -> None:
    """The controller has committed it nevertheless."""
    router, idle = fixture.follower("router-0"), fixture.follower("worker-0")
    router.join()
    idle.join()
    (request_id,) = router.submit(topics(1), deadline_ms=1)
    answer = router.answer(request_id)
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
    router.catch_up(router.image.offset)
    router.until(lambda: names(router.image) == ["t1"], "the topic is there")


def test_a_reconnected_process_gets_what_it_missed(fixture: RunningController) -> None:
    router, worker = fixture.follower("router-0"), fixture.follower("worker-0")
    router.join()
    worker.join()
    had = worker.image
    fixture.leave(worker)
    (request_id,) = router.submit(topics(1))
    router.catch_up()
    router.apply()
    again = fixture.follower("worker-0")
    again.image = had
    again.join()
    (message,) = again.heard
    assert isinstance(message, MetadataRecords)
    assert message.base_offset == had.offset
    assert names(again.image) == ["t1"]
    assert codes(decode_reply(router.answer(request_id).reply)) == [ErrorCode.NONE]


def test_a_process_of_another_cluster_is_neither_served_nor_waited_for(
    fixture: RunningController,
) -> None:
    stranger, router = fixture.follower("worker-7"), fixture.follower("router-0")
    stranger.follow(cluster_id="another-cluster")
    router.join()
    assert codes(router.do(topics(1))) == [ErrorCode.NONE]
    stranger.listen()
    assert stranger.heard == []
    assert "another-cluster" in fixture.process.log.read_text()


def test_a_process_of_our_cluster_is_served(fixture: RunningController) -> None:
    worker = fixture.follower("worker-0")
    worker.follow(cluster_id=CLUSTER_ID)
    worker.catch_up()
    assert worker.image.cluster_id == CLUSTER_ID


@pytest.mark.parametrize("kills", [True, False], ids=["killed", "stopped"])
def test_an_answered_command_survives_a_restart(fixture: RunningController, kills: bool) -> None:
    router = fixture.follower("router-0")
    router.join()
    router.do(topics(1, 2))
    retention = ResourceOperations(
        ConfigResourceType.TOPIC, "t1", (ConfigOperation("retention.ms", 0, "5"),)
    )
    router.do(IncrementalAlterConfigs((retention,)))
    ids = router.do(AllocateProducerIds(0, router.image.brokers[0].broker_epoch))
    assert isinstance(ids, ProducerIdsReply)
    before = router.image
    fixture.restart(kills=kills)
    router.join()
    assert names(router.image) == ["t1", "t2"]
    assert router.image.configs.of(ConfigResourceType.TOPIC, "t1") == {"retention.ms": "5"}
    epoch = router.image.brokers[0].broker_epoch
    assert epoch == before.brokers[0].broker_epoch, "the node itself was not restarted"
    again = router.do(AllocateProducerIds(0, epoch))
    assert isinstance(again, ProducerIdsReply)
    assert again.first >= ids.first + ids.count
    fresh = fixture.follower("worker-0")
    fresh.join()
    assert have_same_content(fresh.image, router.image)


def test_a_restarted_node_registers_anew_and_leads_in_new_epochs(
    fixture: RunningController,
) -> None:
    router = fixture.follower("router-0")
    router.join()
    router.do(topics(1))
    before = router.image
    fixture.restart(kills=True, is_new_run=True)
    router.join()
    assert router.image.brokers[0].broker_epoch > before.brokers[0].broker_epoch
    (was,) = before.topics_by_name["t1"].partitions
    (now,) = router.image.topics_by_name["t1"].partitions
    assert (now.leader, now.in_sync_replicas) == (was.leader, was.in_sync_replicas)
    assert now.leader_epoch == was.leader_epoch + 1
    assert now.partition_epoch == was.partition_epoch + 1


def test_a_long_log_becomes_a_snapshot_and_is_loaded_from_it(fixture: RunningController) -> None:
    router = fixture.follower("router-0")
    router.join()
    early = router.image
    for number in range(1, SNAPSHOT_ENTRIES + 10):
        router.do(topics(number))
    late = router.image
    fixture.process.kill()
    log = MetadataLog.open(fixture.config.metadata_folder)
    mark = log.snapshot
    assert mark is not None
    assert early.offset < mark.index <= late.offset
    assert log.first_index == mark.index + 1, "what is in the snapshot is not in the log"
    assert log.last_index - mark.index < SNAPSHOT_ENTRIES
    log.close()
    fixture.restart(kills=True)

    # Who was there before the snapshot gets it; who was there later gets the rest.
    fresh, behind, near = (fixture.follower(f"worker-{index}") for index in range(3))
    behind.image, near.image = early, late
    for follower in (fresh, behind, near):
        follower.join()
    assert isinstance(fresh.heard[0], MetadataSnapshot)
    assert isinstance(behind.heard[0], MetadataSnapshot)
    assert isinstance(near.heard[0], MetadataRecords)
    assert near.heard[0].base_offset == late.offset
    wanted = sorted(f"t{number}" for number in range(1, SNAPSHOT_ENTRIES + 10))
    for follower in (fresh, behind, near):
        assert names(follower.image) == wanted
        assert have_same_content(follower.image, near.image)


def test_a_process_ahead_of_the_log_is_set_back(fixture: RunningController) -> None:
    """The controller's disk has lost entries: its present log counts."""
    router = fixture.follower("router-0")
    router.join()
    ahead = fixture.follower("worker-0")
    ahead.follow(offset=router.image.offset + 1_000)
    ahead.catch_up()
    assert isinstance(ahead.heard[0], MetadataSnapshot)
    assert ahead.image.offset == router.image.offset


def test_a_full_disk_allows_deletions_but_no_creations(tmp_path: Path) -> None:
    config = node_config(tmp_path)
    with small_disk(config.metadata_folder, 8 << 20) as disk:
        fixture = RunningController(tmp_path)
        try:
            router = fixture.follower("router-0")
            router.join()
            last = SNAPSHOT_ENTRIES + 5
            router.do(topics(*range(1, last + 1)))
            disk.fill()
            (refused,) = router.submit(topics(last + 1))
            assert router.answer(refused).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            # So many that a snapshot is due, for which there is no room.
            for number in range(1, last):
                disk.fill()
                router.do(DeleteTopics((TopicReference(f"t{number}"),)))
            assert names(router.image) == [f"t{last}"]
            assert "a metadata snapshot cannot be written" in fixture.process.log.read_text()
            fixture.restart(kills=True)
            router.follow()
            (refused,) = router.submit(topics(last + 1))
            assert router.answer(refused).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            disk.empty()
            router.do(topics(last + 2))
            assert names(router.image) == [f"t{last}", f"t{last + 2}"]
        finally:
            fixture.close()


def test_as_many_workers_are_wanted_as_the_broker_is_configured_with(
    fixture: RunningController,
) -> None:
    router, gone = fixture.follower("router-0"), fixture.follower("worker-5")
    router.join()
    gone.join()
    (before,) = router.submit(workers("3"))
    router.catch_up()
    router.apply()
    assert fixture.process.wait_for(ResizeWorkers) == ResizeWorkers(3)
    gone.catch_up()
    gone.apply()
    assert router.answer(before).error_code == ErrorCode.NONE
    # More than there are stores would own nothing.
    (more,) = router.submit(workers("60"))
    assert fixture.process.wait_for(ResizeWorkers) == ResizeWorkers(fixture.config.store_count)
    router.until(lambda: router.image.offset > 0, "it is told")
    (fewer,) = router.submit(workers(None))
    assert fixture.process.wait_for(ResizeWorkers) == ResizeWorkers(fixture.config.worker_count)
    # worker-5 is none of those any more: nobody waits for it.

    def are_answered() -> bool:
        router.apply()
        return {more, fewer} <= router.answers.keys()

    router.until(are_answered, "both are answered")


def workers(count: str | None) -> IncrementalAlterConfigs:
    operation = ConfigOperation("workers", 1 if count is None else 0, count)
    return IncrementalAlterConfigs(
        (ResourceOperations(ConfigResourceType.BROKER, "0", (operation,)),)
    )


def test_changed_listeners_are_registered_at_once_and_after_a_restart(
    fixture: RunningController,
) -> None:
    router = fixture.follower("router-0")
    router.join()
    (before,) = router.image.brokers[0].listeners
    operations = (
        ConfigOperation("listeners", 0, "PLAINTEXT://127.0.0.1:1,EXTRA://127.0.0.1:2"),
        ConfigOperation("advertised.listeners", 0, "EXTRA://outside:3"),
        ConfigOperation("listener.security.protocol.map", 0, "PLAINTEXT:PLAINTEXT,EXTRA:SSL"),
    )
    router.do(
        IncrementalAlterConfigs((ResourceOperations(ConfigResourceType.BROKER, "0", operations),))
    )

    def listeners() -> list[tuple[str, str, int, str]]:
        router.apply()
        return [
            (each.name, each.host, each.port, each.security_protocol)
            for each in router.image.brokers[0].listeners
        ]

    expected = [("PLAINTEXT", before.host, 1, "PLAINTEXT"), ("EXTRA", "outside", 3, "SSL")]
    router.until(lambda: listeners() == expected, "they are registered")
    fixture.restart(kills=True, is_new_run=True)
    router.join()
    assert listeners() == expected


def test_a_log_of_a_newer_release_is_not_served(fixture: RunningController) -> None:
    assert fixture.process.stop() == 0
    log = MetadataLog.open(fixture.config.metadata_folder)
    newer = encode_records([FeatureLevelChanged("of.tomorrow", 1)])
    log.append_entries([MetadataLogEntry(log.last_index + 1, log.hard_state.term, newer)])
    log.close()
    fixture.process = fixture.spawn()
    assert fixture.process.wait() == 1
    said = (fixture.config.run_folder / "controller.log").read_text()
    assert "finalized level 1 of of.tomorrow, which this release does not support" in said
    assert "Traceback" not in said


def test_a_weaker_durability_is_recorded_before_others_learn_of_it(
    fixture: RunningController,
) -> None:
    def durability() -> object:
        return json.loads((fixture.config.data_folder / NAME).read_bytes())["durability"]

    router = fixture.follower("router-0")
    router.join()
    assert durability() == "interval"
    router.do(durable("commit"))
    assert durability() == "interval", "appends of this run were acknowledged without a sync"
    fixture.configure(durability=Durability.COMMIT)
    fixture.restart(kills=True, is_new_run=True)
    router.join()
    assert durability() == "commit"
    (request_id,) = router.submit(durable("interval"))
    router.catch_up()
    # It is not answered yet, because this process has not said that it has applied it.
    assert durability() == "interval"
    router.apply()
    assert router.answer(request_id).error_code == ErrorCode.NONE


def durable(text: str) -> IncrementalAlterConfigs:
    operation = ConfigOperation("durability", 0, text)
    return IncrementalAlterConfigs(
        (ResourceOperations(ConfigResourceType.BROKER, "0", (operation,)),)
    )
