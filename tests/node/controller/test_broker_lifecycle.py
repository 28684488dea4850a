"""Registration, heartbeats and controlled shutdown of a node."""

from collections.abc import Callable
from pathlib import Path

from odradek.cluster.controller.commands import (
    BrokerHeartbeat,
    BrokerReply,
    Command,
    CommandReply,
    HeartbeatReply,
    RegisterBroker,
    decode_command,
    encode_reply,
)
from odradek.cluster.metadata.image import BrokerImage, MetadataImage
from odradek.node.bus.peer_messages import ForwardResponse
from odradek.node.config import NodeConfig, load
from odradek.node.controller.broker_lifecycle import (
    FIRST_HEARTBEAT_MS,
    RETRY_MS,
    SHUTDOWN_GIVE_UP_MS,
    SHUTDOWN_HEARTBEAT_MS,
    BrokerLifecycle,
)
from odradek.protocol.errors import ErrorCode

INCARNATION = b"i" * 16


class Life:
    """A node's BrokerLifecycle, and the commands it has submitted."""

    def __init__(self, folder: Path, *, is_clustered: bool = True) -> None:
        peers = {"peers": "0@127.0.0.1:1,1@127.0.0.1:2,2@127.0.0.1:3"} if is_clustered else {}
        self.config: NodeConfig = load(environment={}, options={"data": str(folder), **peers})
        self.asked: list[Command] = []
        self._answers: list[Callable[[ForwardResponse], None]] = []
        self.now_ms = 0
        self.epochs: list[int] = []
        self.presence = BrokerLifecycle(
            self.config,
            INCARNATION,
            self._submit,
            previous_broker_epoch=9,
            on_registered=self.epochs.append,
        )

    def _submit(
        self, command: bytes, _timeout: int, answer: Callable[[ForwardResponse], None]
    ) -> None:
        self.asked.append(decode_command(command))
        self._answers.append(answer)

    def tick(self, after_ms: int = 0, *, offset: int = 5, is_complete: bool = True) -> None:
        self.now_ms += after_ms
        self.presence.tick(self.now_ms, offset=offset, is_complete=is_complete)

    def answer(self, reply: CommandReply | ErrorCode, *, offset: int = -1) -> None:
        """Answer the last question."""
        answer = self._answers.pop()
        if isinstance(reply, ErrorCode):
            answer(ForwardResponse(0, reply))
        else:
            answer(ForwardResponse(0, ErrorCode.NONE, encode_reply(reply), None, offset))

    def registered(self) -> "Life":
        self.tick()
        self.answer(BrokerReply(17))
        return self


def heartbeat_reply(*, is_fenced: bool = False, should_shut_down: bool = False) -> HeartbeatReply:
    return HeartbeatReply(
        is_caught_up=True,
        is_fenced=is_fenced,
        is_in_controlled_shutdown=False,
        should_shut_down=should_shut_down,
        next_heartbeat_ms=200,
    )


def test_one_registration_is_sent_at_a_time(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.tick()
    life.tick(10_000)
    (command,) = life.asked
    assert isinstance(command, RegisterBroker)
    assert (command.incarnation_id, command.starts_fenced) == (INCARNATION, True)


def test_a_single_node_sends_no_heartbeats(tmp_path: Path) -> None:
    life = Life(tmp_path, is_clustered=False).registered()
    (command,) = life.asked
    assert isinstance(command, RegisterBroker)
    assert not command.starts_fenced
    life.tick(10_000)
    assert len(life.asked) == 1
    assert life.presence.next_deadline_ms() is None


def test_a_refused_registration_is_retried(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.tick()
    life.answer(ErrorCode.DUPLICATE_BROKER_REGISTRATION)
    life.tick(RETRY_MS - 1)
    assert len(life.asked) == 1
    assert life.presence.next_deadline_ms() == RETRY_MS
    life.tick(1)
    assert len(life.asked) == 2


def test_a_registration_refused_for_a_full_disk_is_reported(tmp_path: Path) -> None:
    life = Life(tmp_path, is_clustered=False)
    seen = []
    life.tick()
    for reply in (ErrorCode.KAFKA_STORAGE_ERROR, BrokerReply(1)):
        seen.append(life.presence.is_refused)
        life.answer(reply)
        life.tick(RETRY_MS)
    assert [*seen, life.presence.is_refused] == [False, True, False]


def test_heartbeats_carry_the_applied_offset(tmp_path: Path) -> None:
    life = Life(tmp_path).registered()
    life.tick(FIRST_HEARTBEAT_MS, offset=30, is_complete=False)
    assert life.asked[-1] == BrokerHeartbeat(0, 17, 30, wants_fence=True)
    life.answer(heartbeat_reply(is_fenced=True))
    life.tick(FIRST_HEARTBEAT_MS, offset=31)
    assert life.asked[-1] == BrokerHeartbeat(0, 17, 31)
    life.answer(heartbeat_reply())
    life.tick(199)
    assert len(life.asked) == 3
    life.tick(1)
    assert len(life.asked) == 4


def test_a_stale_broker_epoch_leads_to_a_new_registration(tmp_path: Path) -> None:
    life = Life(tmp_path).registered()
    life.tick(FIRST_HEARTBEAT_MS)
    life.answer(ErrorCode.STALE_BROKER_EPOCH)
    life.tick()
    assert isinstance(life.asked[-1], RegisterBroker)


def test_a_registration_carries_the_previous_broker_epoch(tmp_path: Path) -> None:
    life = Life(tmp_path).registered()
    life.tick(FIRST_HEARTBEAT_MS)
    life.answer(ErrorCode.STALE_BROKER_EPOCH)
    life.tick()
    told = [c.previous_broker_epoch for c in life.asked if isinstance(c, RegisterBroker)]
    assert told == [9, 17]
    assert life.epochs == [17], "noted before anything is done under it"


def test_another_number_of_workers_is_registered(tmp_path: Path) -> None:
    life = Life(tmp_path).registered()
    life.presence.resize_workers(3)
    life.tick()
    life.answer(ErrorCode.REQUEST_TIMED_OUT)
    life.tick(RETRY_MS)
    again = life.asked[-1]
    assert isinstance(again, RegisterBroker)
    assert again.incarnation_id == INCARNATION
    workers = [listener for listener in again.listeners if listener.name.startswith("worker-")]
    assert [listener.port for listener in workers] == [2, 3, 4]
    life.answer(BrokerReply(17))
    life.tick(FIRST_HEARTBEAT_MS)
    assert isinstance(life.asked[-1], BrokerHeartbeat)


def test_a_single_node_does_not_register_another_number_of_workers(tmp_path: Path) -> None:
    life = Life(tmp_path, is_clustered=False).registered()
    life.presence.resize_workers(3)
    life.tick(10_000)
    assert len(life.asked) == 1


def test_a_lost_heartbeat_is_followed_by_the_next(tmp_path: Path) -> None:
    life = Life(tmp_path).registered()
    life.tick(FIRST_HEARTBEAT_MS)
    life.answer(ErrorCode.REQUEST_TIMED_OUT)
    life.tick(RETRY_MS)
    assert isinstance(life.asked[-1], BrokerHeartbeat)


def test_controlled_shutdown_repeats_heartbeats_until_it_may_stop(tmp_path: Path) -> None:
    life = Life(tmp_path).registered()
    life.tick(FIRST_HEARTBEAT_MS)
    life.answer(heartbeat_reply())
    life.presence.begin_controlled_shutdown(life.now_ms)
    for _ in range(2):
        life.tick(SHUTDOWN_HEARTBEAT_MS)
        assert life.asked[-1] == BrokerHeartbeat(0, 17, 5, wants_shut_down=True)
        assert life.presence.shutdown_offset is None
        life.answer(heartbeat_reply())
    life.tick(SHUTDOWN_HEARTBEAT_MS)
    life.answer(heartbeat_reply(is_fenced=True, should_shut_down=True), offset=33)
    assert life.presence.shutdown_offset == 33
    count = len(life.asked)
    life.tick(10_000)
    assert len(life.asked) == count, "it is gone as far as the others are concerned"
    assert life.presence.next_deadline_ms() is None


def test_a_node_that_is_not_registered_may_stop_at_once(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.tick()
    life.answer(ErrorCode.DUPLICATE_BROKER_REGISTRATION)
    life.presence.begin_controlled_shutdown(life.now_ms)
    life.tick()
    assert life.presence.shutdown_offset == 0


def test_controlled_shutdown_ends_without_a_quorum(tmp_path: Path) -> None:
    life = Life(tmp_path).registered()
    life.presence.begin_controlled_shutdown(life.now_ms)
    while life.now_ms < SHUTDOWN_GIVE_UP_MS - RETRY_MS:
        life.tick(RETRY_MS)
        assert life.presence.shutdown_offset is None
        life.answer(ErrorCode.REQUEST_TIMED_OUT)
    life.tick(RETRY_MS)
    assert life.presence.shutdown_offset == 0


def image_with(broker: BrokerImage) -> MetadataImage:
    empty = MetadataImage.empty()
    return MetadataImage(
        offset=3,
        cluster_id="c",
        brokers={broker.broker_id: broker},
        topics_by_name={},
        topics_by_id={},
        configs=empty.configs,
        features={},
        next_producer_id=0,
    )


def test_only_the_registration_of_this_start_counts(tmp_path: Path) -> None:
    life = Life(tmp_path).registered()
    empty = MetadataImage.empty()
    assert life.presence.broker(empty) is None
    for incarnation, is_ours in ((b"j" * 16, False), (INCARNATION, True)):
        broker = BrokerImage(0, 3, incarnation)
        image = image_with(broker)
        assert (life.presence.broker(image) is broker) == is_ours


def test_a_registration_in_the_image_counts_only_after_the_response(
    tmp_path: Path,
) -> None:
    """Only the controller process was restarted: it begins with its snapshot."""
    life = Life(tmp_path)
    broker = BrokerImage(0, 3, INCARNATION)
    image = image_with(broker)
    life.tick()
    assert life.presence.broker(image) is None
    life.answer(BrokerReply(3))
    assert life.presence.broker(image) is broker
