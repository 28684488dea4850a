"""A router's way to the controller over real ipc sockets: metadata in, commands out, any death
between."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import msgspec
import pytest
import zmq

from odradek.cluster.controller.commands import (
    AllocateProducerIds,
    CommandReply,
    ProducerIdsReply,
    decode_command,
    encode_reply,
)
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.records import ClusterCreated, TopicCreated, encode_records
from odradek.node.bus.endpoint import bind_endpoint, drain_with_identity, encode, ipc_address
from odradek.node.bus.messages import (
    CommandSubmitted,
    DescribeQuorum,
    FromController,
    LivenessCheck,
    LivenessReply,
    MetadataApplied,
    MetadataRecords,
    MetadataSnapshot,
    QuorumDescribed,
    QuorumState,
    SubmitCommand,
    SubscribeMetadata,
    ToController,
)
from odradek.node.bus.reply import drive
from odradek.node.router.controller_link import ControllerLink
from odradek.protocol.errors import ApiError, ErrorCode

Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"
ROUTER = b"router-0"
COMMAND = AllocateProducerIds(0, 1)
DEADLINE_S = 10.0


class Controller:
    """The controller's end: receives every message and sends what the test wants."""

    def __init__(self, context: Context, address: str) -> None:
        self._socket = bind_endpoint(context, address)
        self._decode = msgspec.msgpack.Decoder(list[ToController]).decode
        self._heard: list[ToController] = []

    async def hears(self, kind: type[ToController]) -> ToController:
        """The next message of that type; others are skipped."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for _, payload in drain_with_identity(self._socket):
                    self._heard.extend(self._decode(payload))
                while self._heard:
                    message = self._heard.pop(0)
                    if isinstance(message, kind):
                        return message
                await asyncio.sleep(0.002)

    def says(self, *messages: FromController) -> None:
        self._socket.send_multipart((ROUTER, encode(list(messages))))

    def close(self) -> None:
        self._socket.close(0)


class Answer:
    """The result of a command."""

    def __init__(self, link: ControllerLink, *, timeout_ms: int = 30_000) -> None:
        self.reply: CommandReply | None = None
        self.error: BaseException | None = None
        self._is_there = asyncio.Event()
        drive(link.submit(COMMAND, timeout_ms), self._finish)

    def _finish(self, reply: CommandReply | None, error: BaseException | None) -> None:
        self.reply, self.error = reply, error
        self._is_there.set()

    async def wait(self) -> CommandReply:
        async with asyncio.timeout(DEADLINE_S):
            await self._is_there.wait()
        if self.error is not None:
            raise self.error
        assert self.reply is not None
        return self.reply


class LinkFixture:
    """A link and its images; controllers can be replaced."""

    def __init__(self, context: Context, folder: Path) -> None:
        self.context = context
        self.address = ipc_address(folder, "controller")
        self.images: list[tuple[MetadataImage, MetadataImage]] = []
        self.controller = Controller(context, self.address)
        self.link = ControllerLink(
            loop=asyncio.get_running_loop(),
            context=context,
            address=self.address,
            process=ROUTER.decode(),
            incarnation=7,
            now_ms=lambda: 0,
            on_image=lambda old, new: self.images.append((old, new)),
        )
        self.link.start()

    def replace_controller(self) -> None:
        self.controller.close()
        self.controller = Controller(self.context, self.address)

    def close(self) -> None:
        self.link.close()
        self.controller.close()


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Callable[[Callable[[LinkFixture], Awaitable[None]]], None]]:
    """Run a scene with its own harness and event loop."""
    context: Context = zmq.Context()

    def run(scene: Callable[[LinkFixture], Awaitable[None]]) -> None:
        async def whole() -> None:
            harness = LinkFixture(context, tmp_path)
            try:
                await scene(harness)
            finally:
                harness.close()

        asyncio.run(whole())

    yield run
    context.term()


Play: TypeAlias = Callable[[Callable[[LinkFixture], Awaitable[None]]], None]


def topic_record(number: int) -> bytes:
    return encode_records((TopicCreated(f"t{number}", number.to_bytes(16)),))


def answer_to(message: ToController) -> CommandSubmitted:
    assert isinstance(message, SubmitCommand)
    assert decode_command(message.command) == COMMAND
    reply = encode_reply(ProducerIdsReply(first=1000, count=500))
    return CommandSubmitted(message.request_id, ErrorCode.NONE, reply)


def test_the_link_subscribes_to_metadata_at_its_offset(play: Play) -> None:
    async def scene(harness: LinkFixture) -> None:
        controller = harness.controller
        assert await controller.hears(SubscribeMetadata) == SubscribeMetadata("router-0", 7, 0)
        first = (encode_records((ClusterCreated("c"),)),)
        controller.says(MetadataSnapshot(5, first))
        assert await controller.hears(MetadataApplied) == MetadataApplied("router-0", 5)
        controller.says(MetadataRecords(5, (topic_record(1), topic_record(2))))
        assert await controller.hears(MetadataApplied) == MetadataApplied("router-0", 7)
        assert set(harness.link.image.topics_by_name) == {"t1", "t2"}
        assert harness.link.has_image.is_set()
        assert [(old.offset, new.offset) for old, new in harness.images] == [(0, 5), (5, 7)]
        controller.says(MetadataRecords(9, (topic_record(3),)))
        assert await controller.hears(SubscribeMetadata) == SubscribeMetadata("router-0", 7, 7)
        harness.replace_controller()
        assert await harness.controller.hears(SubscribeMetadata) == SubscribeMetadata(
            "router-0", 7, 7
        )

    play(scene)


def test_a_liveness_check_is_answered(play: Play) -> None:
    async def scene(harness: LinkFixture) -> None:
        await harness.controller.hears(SubscribeMetadata)
        harness.controller.says(LivenessCheck())
        assert await harness.controller.hears(LivenessReply) == LivenessReply("router-0")

    play(scene)


def test_known_records_are_skipped_and_old_images_stay_unchanged(
    play: Play,
) -> None:
    async def scene(harness: LinkFixture) -> None:
        controller = harness.controller
        await controller.hears(SubscribeMetadata)
        controller.says(MetadataRecords(0, (topic_record(1), topic_record(2))))
        await controller.hears(MetadataApplied)
        before = harness.link.image
        both = (topic_record(1), topic_record(2))
        controller.says(MetadataRecords(0, both), MetadataRecords(1, (both[1], topic_record(3))))
        assert await controller.hears(MetadataApplied) == MetadataApplied("router-0", 3)
        assert [(old.offset, new.offset) for old, new in harness.images] == [(0, 2), (2, 3)]
        assert set(before.topics_by_name) == {"t1", "t2"}
        assert set(harness.link.image.topics_by_name) == {"t1", "t2", "t3"}

    play(scene)


def test_nothing_is_received_before_the_start(tmp_path: Path) -> None:
    """The users of images are built after the link, and the controller may answer quickly."""

    async def scene() -> None:
        heard: list[int] = []
        context: Context = zmq.Context()
        controller = Controller(context, ipc_address(tmp_path, "controller"))
        link = ControllerLink(
            loop=asyncio.get_running_loop(),
            context=context,
            address=ipc_address(tmp_path, "controller"),
            process="router-0",
            incarnation=7,
            now_ms=lambda: 0,
            on_image=lambda _old, new: heard.append(new.offset),
        )
        async with asyncio.timeout(DEADLINE_S):
            while not link._link.monitor.poll(0):  # noqa: ASYNC110 - ZeroMQ has no event
                await asyncio.sleep(0.002)
        # Connected, and the loop has turned: still nobody has been told anything.
        assert heard == []
        link.start()
        assert await controller.hears(SubscribeMetadata) == SubscribeMetadata("router-0", 7, 0)
        link.close()
        controller.close()
        context.term()

    asyncio.run(scene())


def test_a_command_is_answered(play: Play) -> None:
    async def scene(harness: LinkFixture) -> None:
        await harness.controller.hears(SubscribeMetadata)
        answer = Answer(harness.link)
        harness.controller.says(answer_to(await harness.controller.hears(SubmitCommand)))
        assert await answer.wait() == ProducerIdsReply(first=1000, count=500)

    play(scene)


def test_an_answered_command_is_visible_in_the_image(play: Play) -> None:
    async def scene(harness: LinkFixture) -> None:
        await harness.controller.hears(SubscribeMetadata)
        seen: list[tuple[int, int]] = []

        async def ask() -> None:
            await harness.link.submit(COMMAND, 30_000)
            seen.append((harness.link.image.offset, len(harness.images)))

        done = asyncio.Event()
        drive(ask(), lambda _value, _error: done.set())
        asked = await harness.controller.hears(SubmitCommand)
        harness.controller.says(MetadataRecords(0, (topic_record(1),)), answer_to(asked))
        async with asyncio.timeout(DEADLINE_S):
            await done.wait()
        assert seen == [(1, 1)]

    play(scene)


def test_commands_are_answered_in_any_order(play: Play) -> None:
    async def scene(harness: LinkFixture) -> None:
        await harness.controller.hears(SubscribeMetadata)
        answers = [Answer(harness.link) for _ in range(3)]
        asked = [await harness.controller.hears(SubmitCommand) for _ in answers]
        for message in reversed(asked):
            assert isinstance(message, SubmitCommand)
            reply = encode_reply(ProducerIdsReply(message.request_id, 1))
            harness.controller.says(CommandSubmitted(message.request_id, ErrorCode.NONE, reply))
        firsts = []
        for answer in answers:
            reply_read = await answer.wait()
            assert isinstance(reply_read, ProducerIdsReply)
            firsts.append(reply_read.first)
        assert firsts == [
            message.request_id for message in asked if isinstance(message, SubmitCommand)
        ]

    play(scene)


def test_an_error_code_raises_an_api_error(play: Play) -> None:
    async def scene(harness: LinkFixture) -> None:
        await harness.controller.hears(SubscribeMetadata)
        answer = Answer(harness.link)
        asked = await harness.controller.hears(SubmitCommand)
        assert isinstance(asked, SubmitCommand)
        code = ErrorCode.STALE_BROKER_EPOCH
        harness.controller.says(CommandSubmitted(asked.request_id, code, b"", "too old"))
        with pytest.raises(ApiError, match="too old") as refused:
            await answer.wait()
        assert refused.value.code is code

    play(scene)


def test_a_command_waits_for_an_unreachable_controller(play: Play) -> None:
    async def scene(harness: LinkFixture) -> None:
        await harness.controller.hears(SubscribeMetadata)
        harness.controller.close()
        answer = Answer(harness.link)
        harness.controller = Controller(harness.context, harness.address)
        harness.controller.says(answer_to(await harness.controller.hears(SubmitCommand)))
        await answer.wait()

    play(scene)


def test_an_unanswered_command_is_sent_again_to_a_restarted_controller(play: Play) -> None:
    async def scene(harness: LinkFixture) -> None:
        await harness.controller.hears(SubscribeMetadata)
        answered, lost = Answer(harness.link), Answer(harness.link)
        harness.controller.says(answer_to(await harness.controller.hears(SubmitCommand)))
        await answered.wait()
        asked = await harness.controller.hears(SubmitCommand)
        harness.replace_controller()
        again = await harness.controller.hears(SubmitCommand)
        assert again == asked
        harness.controller.says(answer_to(again))
        await lost.wait()

    play(scene)


def test_a_command_times_out(play: Play) -> None:
    async def scene(harness: LinkFixture) -> None:
        await harness.controller.hears(SubscribeMetadata)
        answer = Answer(harness.link, timeout_ms=20)
        with pytest.raises(ApiError) as late:
            await answer.wait()
        assert late.value.code is ErrorCode.REQUEST_TIMED_OUT
        await harness.controller.hears(SubmitCommand)
        harness.replace_controller()
        await harness.controller.hears(SubscribeMetadata)
        fresh = Answer(harness.link)
        # What nobody waits for any more is not asked again: this is the other command.
        harness.controller.says(answer_to(await harness.controller.hears(SubmitCommand)))
        await fresh.wait()

    play(scene)


def asked(link: ControllerLink, timeout_ms: int) -> "asyncio.Future[QuorumState | None]":
    answer: asyncio.Future[QuorumState | None] = asyncio.get_running_loop().create_future()

    def finish(state: QuorumState | None, error: BaseException | None) -> None:
        assert error is None
        answer.set_result(state)

    drive(link.describe_quorum(timeout_ms), finish)
    return answer


def test_when_the_router_stops_commands_without_a_reply_time_out(play: Play) -> None:
    async def scene(harness: LinkFixture) -> None:
        await harness.controller.hears(SubscribeMetadata)
        answer, question = Answer(harness.link), asked(harness.link, 30_000)
        harness.link.fail_all()
        with pytest.raises(ApiError) as late:
            await answer.wait()
        assert late.value.code is ErrorCode.REQUEST_TIMED_OUT
        async with asyncio.timeout(DEADLINE_S):
            assert await question is None

    play(scene)


def test_the_controller_describes_the_quorum(play: Play) -> None:
    state = QuorumState(2, 5, 30, ())

    async def scene(harness: LinkFixture) -> None:
        await harness.controller.hears(SubscribeMetadata)
        answer = asked(harness.link, 30_000)
        question = await harness.controller.hears(DescribeQuorum)
        assert isinstance(question, DescribeQuorum)
        harness.controller.says(QuorumDescribed(question.request_id, state))
        async with asyncio.timeout(DEADLINE_S):
            assert await answer == state

    play(scene)


def test_describe_quorum_times_out(play: Play) -> None:
    async def scene(harness: LinkFixture) -> None:
        await harness.controller.hears(SubscribeMetadata)
        async with asyncio.timeout(DEADLINE_S):
            assert await asked(harness.link, 1) is None

    play(scene)
