"""The lag of groups in the metrics: committed offsets against high watermarks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from odradek.coordinator.group.group_directory import GroupDirectory
from odradek.node.bus.reply import Reply, drive
from odradek.node.router import group_lag_metrics
from odradek.node.router.context import inter_broker_context
from odradek.node.router.group_lag_metrics import (
    CACHE_S,
    NAME_BYTES_MAX,
    SCRAPE_TIMEOUT_S,
    GroupLagMetrics,
)
from odradek.node.router.handlers.group_offsets import handle_offset_commit
from odradek.node.router.handlers.groups import handle_find_coordinator
from odradek.node.router.handlers.lag import handle_describe_lag
from odradek.node.router.metadata_cache import MetadataCache
from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.codec import decode_request, decode_response, encode_request, encode_response
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.diagnostics import DescribeLagRequest
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.protocol.messages.groups import FindCoordinatorRequest
from tests.support.group_harness import GroupHarness
from tests.support.stores import batch_of
from tests.support.waiting import wait_until

ELSEWHERE = 7
ENDS = {"t": 3, "u": 0}


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[GroupHarness]:
    with GroupHarness(tmp_path) as harness:
        harness.call(handle_find_coordinator, FindCoordinatorRequest(key="g"), 0)
        harness.have_topic("t", 1, partitions=2)
        harness.have_topic("u", 2)
        yield harness


def commit(harness: GroupHarness, group: str, topic: str, *offsets: int) -> None:
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
    [answer] = harness.call(handle_offset_commit, request, 9).topics
    assert not any(partition.error_code for partition in answer.partitions)


def directories_of(harness: GroupHarness) -> list[GroupDirectory]:
    return [shard.directory for shard in harness.coordinators.shards()]


def lag_of(harness: GroupHarness, **static: str) -> GroupLagMetrics:
    return GroupLagMetrics(
        MetadataCache(harness.services.node_id, static, harness.image),
        harness.client,
        harness.loop,
        lambda: directories_of(harness),
        harness.services.share_lag_positions.find,
    )


def gather(harness: GroupHarness, lag: GroupLagMetrics) -> None:
    """As a scrape does."""
    done: Reply[None] = Reply()
    lag.collect(lambda: done.resolve(None))
    harness.result(done)


def test_a_group_has_a_series_for_each_topic(harness: GroupHarness) -> None:
    now_ms = harness.services.now_ms()
    harness.append("t", batch_of(4, timestamp=now_ms - 9_000))
    harness.append("t", batch_of(3, timestamp=now_ms - 2_000), partition=1)
    harness.append("u", batch_of(1))
    commit(harness, "g", "t", 4, 1)
    commit(harness, "g", "u", 1)
    commit(harness, "h", "t", 1, 3)
    lag = lag_of(harness)
    gather(harness, lag)
    assert lag.records == {("g", "t", ""): 2, ("g", "u", ""): 0, ("h", "t", ""): 3}
    assert lag.seconds == {("g", "t", ""): 2.0, ("g", "u", ""): 0.0, ("h", "t", ""): 9.0}
    assert lag.omitted_count == 0


def test_a_partition_without_a_commit_counts_from_the_log_start(harness: GroupHarness) -> None:
    harness.append("t", batch_of(4))
    harness.append("t", batch_of(3), partition=1)
    commit(harness, "g", "t", 4)
    lag = lag_of(harness)
    gather(harness, lag)
    assert lag.records == {("g", "t", ""): 3}
    assert lag.uncommitted == {("g", "t", ""): 1}
    commit(harness, "g", "t", 4, 3)
    lag = lag_of(harness)
    gather(harness, lag)
    assert lag.records == lag.bytes == {("g", "t", ""): 0}
    assert not lag.uncommitted


def test_series_are_by_partition_or_off_as_configured(
    harness: GroupHarness,
) -> None:
    harness.append("t", batch_of(4))
    commit(harness, "g", "t", 1, 0)
    by_partition = lag_of(harness, **{"group.lag.metrics": "partition"})
    gather(harness, by_partition)
    assert by_partition.records == {("g", "t", "0"): 3, ("g", "t", "1"): 0}
    none = lag_of(harness, **{"group.lag.metrics": "none"})
    gather(harness, none)
    assert not none.records


def test_a_deleted_topic_has_no_series(harness: GroupHarness) -> None:
    commit(harness, "g", "t", 0)
    commit(harness, "g", "u", 0)
    lag = lag_of(harness)
    harness.drop_topic("u")
    gather(harness, lag)
    assert set(lag.records) == {("g", "t", "")}


def test_series_over_the_limit_are_one_and_too_long_names_are_only_counted(
    harness: GroupHarness,
) -> None:
    for group in ("a", "b", "c", "x" * (NAME_BYTES_MAX + 1)):
        commit(harness, group, "t", 0, 0)
    harness.append("t", batch_of(4))
    lag = lag_of(harness, **{"metrics.series.max": "1"})
    gather(harness, lag)
    assert sorted(lag.records.values()) == [4, 8]
    assert lag.records["_other", "_other", "_other"] == 8
    assert lag.omitted_count == 1


class Passage:
    """The link from another node to the harness's router, with encoded messages; blocked or not."""

    def __init__(self, harness: GroupHarness) -> None:
        self._room = harness
        self._held: list[tuple[DescribeLagRequest, Reply[object]]] = []
        self.is_open = True
        self.sizes: list[int] = []
        """Partitions in each request."""

    def send(self, node_id: int, request: object) -> Reply[Any]:
        assert node_id == self._room.services.node_id
        assert isinstance(request, DescribeLagRequest)
        assert not self._held, "one request after another"
        self.sizes.append(sum(len(topic.partitions) for topic in request.topics))
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

        context = inter_broker_context(key, version)
        drive(handle_describe_lag(arrived, context, self._room.services), finish)


def lag_elsewhere(harness: GroupHarness, passage: Passage) -> GroupLagMetrics:
    return GroupLagMetrics(
        MetadataCache(ELSEWHERE, {}, harness.image),
        passage,
        harness.loop,
        lambda: directories_of(harness),
        harness.services.share_lag_positions.find,
    )


def test_leaders_on_other_brokers_are_queried(harness: GroupHarness) -> None:
    harness.append("t", batch_of(4))
    commit(harness, "g", "t", 1, 0)
    commit(harness, "h", "t", 2)
    lag = lag_elsewhere(harness, Passage(harness))
    gather(harness, lag)
    assert lag.records == {("g", "t", ""): 3, ("h", "t", ""): 2}


def test_a_leader_is_asked_for_many_positions_in_requests_of_a_limited_size(
    harness: GroupHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_lag_metrics, "POSITIONS_PER_REQUEST", 2)
    harness.append("t", batch_of(4))
    for group in "ghi":
        commit(harness, group, "t", 1, 0)
        commit(harness, group, "u", 0)
    passage = Passage(harness)
    lag = lag_elsewhere(harness, passage)
    gather(harness, lag)
    assert lag.records == {(group, topic, ""): n for group in "ghi" for topic, n in ENDS.items()}
    assert passage.sizes == [2, 2, 2, 2, 1]


def test_a_scrape_does_not_wait_for_a_slow_leader_and_the_next_one_has_its_lag(
    harness: GroupHarness,
) -> None:
    harness.append("t", batch_of(4))
    commit(harness, "g", "t", 1)
    passage = Passage(harness)
    passage.is_open = False
    lag = lag_elsewhere(harness, passage)
    began = harness.loop.time()
    gather(harness, lag)
    assert not lag.records
    assert harness.loop.time() - began >= SCRAPE_TIMEOUT_S
    passage.let_through()
    gather(harness, lag)
    assert lag.records == {("g", "t", ""): 3}
    assert not passage._held, f"who asks within {CACHE_S} s is told the same"


def test_a_series_with_an_unknown_partition_is_left_out(harness: GroupHarness) -> None:
    commit(harness, "g", "t", 0)
    passage = Passage(harness)
    passage.is_open = False
    lag = lag_elsewhere(harness, passage)
    done: list[str] = []
    lag.collect(lambda: done.append("first"))
    lag.collect(lambda: done.append("second"))
    passage.break_off()
    assert done == ["first", "second"]
    assert not lag.records
    assert not lag.seconds


def test_the_values_of_the_next_scrape_are_computed_before_it(
    harness: GroupHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_lag_metrics, "CACHE_S", 0.05)
    monkeypatch.setattr(group_lag_metrics, "LEAD_S", 0.02)
    harness.append("t", batch_of(4))
    commit(harness, "g", "t", 1, 0)
    lag = lag_of(harness)
    gather(harness, lag)
    assert lag.records == {("g", "t", ""): 3}
    began = harness.loop.time()
    while harness.loop.time() < began + 0.2:
        harness.turn_loop(0.01)
    commit(harness, "g", "t", 2, 0)
    gather(harness, lag)
    assert lag.records == {("g", "t", ""): 2}
    commit(harness, "g", "t", 4, 0)

    def is_computed() -> bool:
        harness.turn_loop(0.01)
        return lag.records == {("g", "t", ""): 0}

    wait_until(is_computed, what="the lag is computed for the next scrape")
    commit(harness, "g", "t", 3, 0)
    began = harness.loop.time()
    while harness.loop.time() < began + 0.3:
        harness.turn_loop(0.01)
    assert lag.records == {("g", "t", ""): 0}, "once for each scrape"
