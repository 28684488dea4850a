"""Streams groups (KIP-1071) with the playbook: topologies, heartbeats, well-behaved members.

`StreamsThread` behaves as a thread of Kafka Streams does: it revokes tasks that it has to revoke,
adds those that it is assigned, and reports its tasks. A test may lose its responses.
"""

from collections.abc import Sequence

from odradek.cluster.metadata.group_settings import StreamsGroupSettings
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.streams.group import StreamsGroup
from odradek.coordinator.group.streams.records import TasksTuple
from odradek.coordinator.group.streams.requests import DescribeStreamsGroup, StreamsHeartbeatResult
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.streams import (
    CopartitionGroup,
    StreamsGroupDescribedGroup,
    StreamsGroupEndpoint,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsGroupHeartbeatSubtopology,
    StreamsGroupHeartbeatTopology,
    TaskIds,
    TaskOffset,
    TopicInfo,
)
from tests.support.consumer_playbook import Stage
from tests.support.group_playbook import GroupCall

REBALANCE_TIMEOUT_MS = 30_000
AT_ONCE = StreamsGroupSettings(initial_rebalance_delay_ms=0, assignment_interval_ms=0)
STREAMS = GroupSettings(streams=AT_ONCE)
STANDBY = GroupSettings(
    streams=StreamsGroupSettings(
        initial_rebalance_delay_ms=0, assignment_interval_ms=0, num_standby_replicas=1
    )
)
TOPICS = {"in": 3, "words": 3, "counts": 3}


def subtopology(
    subtopology_id: str,
    *sources: str,
    changelogs: Sequence[str] = (),
    sinks: Sequence[str] = (),
    repartition: Sequence[str] | dict[str, int] = (),
    together: Sequence[tuple[Sequence[int], Sequence[int]]] = (),
) -> StreamsGroupHeartbeatSubtopology:
    """`together`: copartition groups, as indexes of sources and of repartition topics."""
    counts = repartition if isinstance(repartition, dict) else dict.fromkeys(repartition, 0)
    return StreamsGroupHeartbeatSubtopology(
        subtopology_id=subtopology_id,
        source_topics=list(sources),
        state_changelog_topics=[TopicInfo(name=name) for name in changelogs],
        repartition_sink_topics=list(sinks),
        repartition_source_topics=[
            TopicInfo(name=name, partitions=count) for name, count in counts.items()
        ],
        copartition_groups=[
            CopartitionGroup(source_topics=list(a), repartition_source_topics=list(b))
            for a, b in together
        ],
    )


def topology(
    *parts: StreamsGroupHeartbeatSubtopology, epoch: int = 0
) -> StreamsGroupHeartbeatTopology:
    return StreamsGroupHeartbeatTopology(epoch=epoch, subtopologies=list(parts))


def word_count(epoch: int = 0) -> StreamsGroupHeartbeatTopology:
    """Reads `in`, writes `words`, counts them into a store that is kept in `counts`."""
    return topology(
        subtopology("0", "in", sinks=["words"]),
        subtopology("1", repartition=["words"], changelogs=["counts"]),
        epoch=epoch,
    )


class StreamsStage(Stage):
    """A playbook with the topics of the word count."""

    def __init__(
        self,
        topics: dict[str, int] | None = None,
        settings: GroupSettings = STREAMS,
        log: Sequence[tuple[bytes, bytes | None]] = (),
    ) -> None:
        super().__init__(TOPICS if topics is None else topics, settings, log=log)

    def streams_call(
        self,
        member_id: str,
        epoch: int = 0,
        *,
        group: str = "g",
        plan: StreamsGroupHeartbeatTopology | None = None,
        owned: TasksTuple | None = None,
        instance: str | None = None,
        process: str | None = None,
        timeout_ms: int = -1,
        endpoint: tuple[str, int] | None = None,
        endpoint_epoch: int = -1,
        shutdown: bool = False,
        offsets: Sequence[TaskOffset] | None = None,
        rack: str | None = None,
        connection: int = 1,
    ) -> GroupCall:
        request = StreamsGroupHeartbeatRequest(
            group_id=group,
            member_id=member_id,
            member_epoch=epoch,
            endpoint_information_epoch=endpoint_epoch,
            instance_id=instance,
            rack_id=rack,
            rebalance_timeout_ms=timeout_ms,
            topology=plan,
            process_id=process,
            user_endpoint=None
            if endpoint is None
            else StreamsGroupEndpoint(host=endpoint[0], port=endpoint[1]),
            shutdown_application=shutdown,
            task_offsets=None if offsets is None else list(offsets),
        )
        if owned is not None:
            request.active_tasks, request.standby_tasks, request.warmup_tasks = (
                [
                    TaskIds(subtopology_id=name, partitions=sorted(indexes))
                    for name, indexes in tasks.items()
                ]
                for tasks in owned
            )
        return self.ask(request, connection=connection)

    def send_streams_heartbeat(
        self,
        member_id: str,
        epoch: int = 0,
        *,
        group: str = "g",
        plan: StreamsGroupHeartbeatTopology | None = None,
        owned: TasksTuple | None = None,
        instance: str | None = None,
        process: str | None = None,
        endpoint: tuple[str, int] | None = None,
        endpoint_epoch: int = -1,
        shutdown: bool = False,
        connection: int = 1,
    ) -> StreamsGroupHeartbeatResponse:
        """A heartbeat and its response; one that joins has all required fields."""
        return self.streams_answer(
            self.streams_call(
                member_id,
                epoch,
                group=group,
                plan=word_count() if epoch == 0 and plan is None else plan,
                owned=TasksTuple() if epoch == 0 and owned is None else owned,
                instance=instance,
                process=process or (f"p-{member_id}" if epoch == 0 else None),
                timeout_ms=REBALANCE_TIMEOUT_MS if epoch == 0 else -1,
                endpoint=endpoint,
                endpoint_epoch=endpoint_epoch,
                shutdown=shutdown,
                connection=connection,
            )
        ).response

    @staticmethod
    def streams_answer(call: GroupCall) -> StreamsHeartbeatResult:
        return call.response(StreamsHeartbeatResult)

    def streams(self, group: str = "g") -> StreamsGroup:
        found = self.shard.streams.get(group)
        assert found is not None
        return found

    def describe_streams(self, group: str = "g") -> StreamsGroupDescribedGroup:
        return self.ask(DescribeStreamsGroup(group)).response(StreamsGroupDescribedGroup)


class StreamsThread:
    """A well-behaved member. `tasks` is what it runs."""

    def __init__(
        self, stage: StreamsStage, member_id: str, *, process: str = "", instance: str | None = None
    ) -> None:
        self.stage = stage
        self.member_id = member_id
        self.process = process or f"p-{member_id}"
        self.instance = instance
        self.epoch = 0
        self.tasks = TasksTuple()
        self.errors: list[ErrorCode] = []
        self.statuses: list[int] = []
        self.endpoint_port = 1
        """Of the endpoint that a test sends: a new one starts a group epoch."""

    def send_heartbeat(self) -> None:
        is_join = self.epoch == 0
        self.hear(
            self.stage.streams_answer(
                self.stage.streams_call(
                    self.member_id,
                    self.epoch,
                    plan=word_count() if is_join else None,
                    owned=self.tasks,
                    process=self.process if is_join else None,
                    timeout_ms=REBALANCE_TIMEOUT_MS if is_join else -1,
                    instance=self.instance,
                )
            ).response
        )

    def hear(self, response: StreamsGroupHeartbeatResponse) -> None:
        if response.error_code:
            self.errors.append(ErrorCode(response.error_code))
            assert response.error_code in (
                ErrorCode.FENCED_MEMBER_EPOCH,
                ErrorCode.UNKNOWN_MEMBER_ID,
            ), response
            self.tasks, self.epoch = TasksTuple(), 0
            return
        self.epoch = response.member_epoch
        self.statuses = [status.status_code for status in response.status or ()]
        if response.active_tasks is not None:
            self.tasks = TasksTuple(
                assigned_tasks(response.active_tasks),
                assigned_tasks(response.standby_tasks),
                assigned_tasks(response.warmup_tasks),
            )

    @property
    def active(self) -> set[tuple[str, int]]:
        return {(name, index) for name, found in self.tasks.active.items() for index in found}

    @property
    def warming(self) -> set[tuple[str, int]]:
        return {(name, index) for name, found in self.tasks.warmup.items() for index in found}

    @property
    def standby(self) -> set[tuple[str, int]]:
        return {(name, index) for name, found in self.tasks.standby.items() for index in found}


class LagReportingThread(StreamsThread):
    """A member that reports the offsets of its tasks: a number of records before the end."""

    lag: int | None = None

    def send_heartbeat(self) -> None:
        is_join = self.epoch == 0
        lags = {task: self.lag for task in sorted(self.warming) if self.lag is not None}
        request = StreamsGroupHeartbeatRequest(
            group_id="g",
            member_id=self.member_id,
            member_epoch=self.epoch,
            rebalance_timeout_ms=30_000 if is_join else -1,
            process_id=self.process if is_join else None,
            topology=word_count() if is_join else None,
            task_offsets=[
                TaskOffset(subtopology_id=name, partition=index, offset=100_000 - lag)
                for (name, index), lag in lags.items()
            ],
            task_end_offsets=[
                TaskOffset(subtopology_id=name, partition=index, offset=100_000)
                for name, index in lags
            ],
        )
        request.active_tasks, request.standby_tasks, request.warmup_tasks = (
            [TaskIds(subtopology_id=name, partitions=sorted(i)) for name, i in found.items()]
            for found in self.tasks
        )
        self.hear(self.stage.ask(request, version=1).response(StreamsHeartbeatResult).response)


def assigned_tasks(tasks: list[TaskIds] | None) -> dict[str, frozenset[int]]:
    assert tasks is not None
    return {each.subtopology_id: frozenset(each.partitions) for each in tasks}


def settle_threads(*members: StreamsThread, rounds: int = 15) -> None:
    """Heartbeats of all threads in turn until nothing changes any more."""
    for _ in range(rounds):
        before = [(member.epoch, member.tasks) for member in members]
        for member in members:
            member.send_heartbeat()
        if before == [(member.epoch, member.tasks) for member in members]:
            return
    raise AssertionError("the group does not come to rest")
