"""The lag of groups for whoever reads the metrics: what is committed against where logs end."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.settings import broker_settings
from odradek.coordinator.group.offsets import Offsets
from odradek.coordinator.group.shard import GroupShard
from odradek.node.bus.reply import Reply, drive
from odradek.node.router import group_lag
from odradek.node.router.context import context_of_cluster
from odradek.node.router.group_lag import AGAIN_S, NAME_BYTES_MAX, WAIT_S, GroupLag
from odradek.node.router.handlers.group_offsets import handle_offset_commit
from odradek.node.router.handlers.groups import handle_find_coordinator
from odradek.node.router.handlers.lag import describe_lag_here, handle_describe_lag
from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.codec import decode_request, decode_response, encode_request, encode_response
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.protocol.messages.groups import FindCoordinatorRequest
from odradek.protocol.messages.insight import DescribeLagRequest
from tests.support.group_room import GroupRoom, NoNeighbours
from tests.support.stores import batch_of

ELSEWHERE = 7


@pytest.fixture
def room(tmp_path: Path) -> Iterator[GroupRoom]:
    with GroupRoom(tmp_path) as room:
        room.call(handle_find_coordinator, FindCoordinatorRequest(key="g"), 0)
        room.have_topic("t", 1, partitions=2)
        room.have_topic("u", 2)
        yield room


def commit(room: GroupRoom, group: str, topic: str, *offsets: int) -> None:
    """Commit these offsets of the topic's first partitions."""
    partitions = [
        OffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_metadata=""
        )
        for index, offset in enumerate(offsets)
    ]
    request = OffsetCommitRequest(
        group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=partitions)]
    )
    [answer] = room.call(handle_offset_commit, request, 9).topics
    assert not any(partition.error_code for partition in answer.partitions)


def offsets_of(room: GroupRoom) -> list[Offsets]:
    return [cast("GroupShard", shard).offsets for shard in room.coordinators.shards()]


def lag_of(room: GroupRoom, **static: str) -> GroupLag:
    return GroupLag(
        room.services,
        NoNeighbours(),
        partial(describe_lag_here, services=room.services),
        loop=room.loop,
        offsets=lambda: offsets_of(room),
        settings=lambda: broker_settings(room.image, room.services.node_id, static),
    )


def gather(room: GroupRoom, lag: GroupLag) -> None:
    """As a scrape does."""
    done: Reply[None] = Reply()
    lag.prepare(lambda: done.resolve(None))
    room.result(done)


def test_a_group_has_a_line_for_each_topic(room: GroupRoom) -> None:
    now_ms = room.services.now_ms()
    room.append("t", batch_of(4, timestamp=now_ms - 9_000))
    room.append("t", batch_of(3, timestamp=now_ms - 2_000), partition=1)
    room.append("u", batch_of(1))
    commit(room, "g", "t", 4, 1)
    commit(room, "g", "u", 1)
    commit(room, "h", "t", 1)
    lag = lag_of(room)
    gather(room, lag)
    assert lag.labels == ("group", "topic")
    assert lag.records == {("g", "t"): 2, ("g", "u"): 0, ("h", "t"): 3}
    assert lag.seconds == {("g", "t"): 2.0, ("g", "u"): 0.0, ("h", "t"): 9.0}
    assert lag.untold_count == 0


def test_lines_are_by_partition_where_that_is_set_and_none_where_that_is(room: GroupRoom) -> None:
    room.append("t", batch_of(4))
    commit(room, "g", "t", 1, 0)
    by_partition = lag_of(room, **{"group.lag.metrics": "partition"})
    gather(room, by_partition)
    assert by_partition.labels == ("group", "topic", "partition")
    assert by_partition.records == {("g", "t", "0"): 3, ("g", "t", "1"): 0}
    none = lag_of(room, **{"group.lag.metrics": "none"})
    gather(room, none)
    assert not none.records


def test_a_topic_that_is_gone_has_no_line(room: GroupRoom) -> None:
    commit(room, "g", "t", 0)
    commit(room, "g", "u", 0)
    lag = lag_of(room)
    room.drop_topic("u")
    gather(room, lag)
    assert set(lag.records) == {("g", "t")}


def test_too_many_lines_and_names_that_are_too_long_are_counted(
    room: GroupRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_lag, "SERIES_MAX", 2)
    for group in ("a", "b", "c", "x" * (NAME_BYTES_MAX + 1)):
        commit(room, group, "t", 0, 0)
    lag = lag_of(room)
    gather(room, lag)
    assert len(lag.records) == 2
    assert lag.untold_count == 2


class Passage:
    """The way from another node to the room's router, in the wire's formats; open or not yet."""

    def __init__(self, room: GroupRoom) -> None:
        self._room = room
        self._held: list[tuple[DescribeLagRequest, Reply[object]]] = []
        self.is_open = True

    def ask(self, node_id: int, request: object) -> Reply[object]:
        assert node_id == self._room.services.node_id
        assert isinstance(request, DescribeLagRequest)
        reply: Reply[object] = Reply()
        self._held.append((request, reply))
        if self.is_open:
            self.let_through()
        return reply

    def let_through(self) -> None:
        held, self._held = self._held, []
        for request, reply in held:
            self._carry(request, reply)

    def break_off(self) -> None:
        held, self._held = self._held, []
        for _, reply in held:
            reply.fail(ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE))

    def _carry(self, request: DescribeLagRequest, reply: Reply[object]) -> None:
        key, version = ApiKey.DESCRIBE_LAG, APIS[ApiKey.DESCRIBE_LAG].max_version
        body = memoryview(b"".join(encode_request(key, version, request)))
        arrived = decode_request(key, version, body)
        assert isinstance(arrived, DescribeLagRequest)

        def finish(response: object, error: BaseException | None) -> None:
            assert error is None, error
            answered = memoryview(b"".join(encode_response(key, version, response)))
            reply.resolve(decode_response(key, version, answered))

        context = context_of_cluster(key, version)
        drive(handle_describe_lag(arrived, context, self._room.services), finish)


class Elsewhere:
    """What another node sees: the same metadata, and nothing that it leads."""

    node_id = ELSEWHERE

    def __init__(self, room: GroupRoom) -> None:
        self._room = room

    @property
    def image(self) -> MetadataImage:
        return self._room.image

    @image.setter
    def image(self, image: MetadataImage) -> None:
        raise AssertionError("nobody tells this node anything")


def lag_elsewhere(room: GroupRoom, passage: Passage) -> GroupLag:
    return GroupLag(
        Elsewhere(room),
        passage,
        partial(describe_lag_here, services=room.services),
        loop=room.loop,
        offsets=lambda: offsets_of(room),
        settings=lambda: broker_settings(room.image, ELSEWHERE, {}),
    )


def test_leaders_elsewhere_are_asked(room: GroupRoom) -> None:
    room.append("t", batch_of(4))
    commit(room, "g", "t", 1, 0)
    commit(room, "h", "t", 2)
    lag = lag_elsewhere(room, Passage(room))
    gather(room, lag)
    assert lag.records == {("g", "t"): 3, ("h", "t"): 2}


def test_a_scrape_does_not_wait_for_a_leader_that_is_slow_and_the_next_one_has_it(
    room: GroupRoom,
) -> None:
    room.append("t", batch_of(4))
    commit(room, "g", "t", 1)
    passage = Passage(room)
    passage.is_open = False
    lag = lag_elsewhere(room, passage)
    began = room.loop.time()
    gather(room, lag)
    assert not lag.records
    assert room.loop.time() - began >= WAIT_S
    passage.let_through()
    gather(room, lag)
    assert lag.records == {("g", "t"): 3}
    assert not passage._held, f"who asks within {AGAIN_S} s is told the same"


def test_what_is_not_known_is_left_out(room: GroupRoom) -> None:
    commit(room, "g", "t", 0)
    passage = Passage(room)
    passage.is_open = False
    lag = lag_elsewhere(room, passage)
    done: list[str] = []
    lag.prepare(lambda: done.append("first"))
    lag.prepare(lambda: done.append("second"))
    passage.break_off()
    assert done == ["first", "second"]
    assert not lag.records
    assert not lag.seconds
