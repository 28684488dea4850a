"""Queries about groups: members and commits from coordinators, lag from partition leaders.

They use our own APIs (protocol/messages/diagnostics.py), which no other broker serves. Requests are
repeated until the timeout of the connection while a coordinator moves or a partition has no leader.
Called by the `group_*` commands.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import click

from odradek.cluster.metadata.group_settings import DURATION_PREFIX, duration_ms
from odradek.cluster.metadata.image import ConfigResourceType
from odradek.cluster.metadata.topic_names import CONSUMER_OFFSETS
from odradek.coordinator.group.offsets.lag import BEYOND_END
from odradek.node.cli import configs
from odradek.node.cli.cluster_client import (
    COORDINATOR_ERRORS,
    PAUSE_S,
    ClusterClient,
)
from odradek.node.cli.group_offsets import share_positions
from odradek.node.cli.not_found import GROUP, raise_refusal
from odradek.node.cli.offsets import (
    LEADERLESS_ERRORS,
    LEADERLESS_S,
    PartitionId,
    by_id,
    known_offsets,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.configs import ListConfigResourcesRequest
from odradek.protocol.messages.diagnostics import (
    DescribeLagRequest,
    DescribeLagRequestPartition,
    DescribeLagRequestTopic,
    DescribeLagResponsePartition,
    ExplainedGroup,
    ExplainGroupRequest,
    ExplainGroupResponse,
)
from odradek.protocol.messages.metadata import MetadataResponsePartition
from odradek.protocol.types import NO_OFFSET

Lag: TypeAlias = DescribeLagResponsePartition
SHARE: Final = "share"
"""The type of share groups."""
COMMITTED_OFFSET: Final = "committed offset"
SHARE_START: Final = "share start offset"
LOG_START: Final = "log start"
_SHARE_RESET: Final = "share.auto.offset.reset"


def is_odradek_cluster(client: ClusterClient) -> bool:
    """Whether the cluster's brokers are Odradek's: whether they serve ExplainGroup."""
    client.metadata()
    request = ExplainGroupRequest(group_ids=[])
    return any(client.ask_node(broker_id, request) is not None for broker_id in client.broker_ids)


def configured_groups(client: ClusterClient) -> set[str]:
    """The groups that have configs of their own."""
    answer = client.ask(ListConfigResourcesRequest(resource_types=[ConfigResourceType.GROUP]))
    return {resource.resource_name for resource in answer.config_resources}


def configured_only_message(name: str) -> str:
    """The error for a group that has only configs: it was never joined, or has expired."""
    return (
        f"group {name} has settings, but no members and no committed offsets:"
        f" `odradek config list group {name}`"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group as its coordinator reports it at `now_ms` by the coordinator's clock."""

    coordinator: int
    now_ms: int
    explained: ExplainedGroup
    share: Mapping[PartitionId, tuple[int, int]] = field(default_factory=dict)
    """Start offset and lag of each partition of a share group; the lag is -1 if it is not known."""

    @property
    def name(self) -> str:
        """The group id."""
        return self.explained.group_id

    def commits(self) -> dict[PartitionId, int]:
        """Committed offsets, or the start offsets of a share group. An offset is -1 if only an open
        transaction has one."""
        if self.share:
            return {partition_id: start for partition_id, (start, _) in self.share.items()}
        commits = by_id(self.explained.commits)
        return {partition_id: commit.committed_offset for partition_id, commit in commits.items()}

    def topics(self) -> list[str]:
        """The topics that it subscribes to or has offsets in."""
        read = (topic for topic, _ in (*self.share, *by_id(self.explained.commits)))
        return sorted({*self.explained.topics, *read})


class GroupQueries:
    """Requests about groups to their coordinators and to partition leaders."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self.brokers: list[int] = []
        self.partitions: dict[PartitionId, MetadataResponsePartition] = {}
        """Of the topics that were requested last."""
        self.leaderless_shard_count = 0
        """The partitions of __consumer_offsets that had no leader in `all_groups`."""
        self.fetch_metadata(())

    def fetch_metadata(self, topics: Iterable[str]) -> None:
        """Fetch the brokers and the partitions of topics; deleted topics have no partitions."""
        metadata = self._client.metadata(topics)
        self.brokers = sorted(broker.node_id for broker in metadata.brokers)
        self.partitions = by_id(topic for topic in metadata.topics if not topic.error_code)

    # -- groups -----------------------------------------------------------------------------------

    def all_groups(self, *, with_events: bool = False) -> list[GroupDescription]:
        """Every group of the cluster, by name."""
        found: dict[str, GroupDescription] = {}
        while True:
            answers = {broker: self._all_groups_of(broker, with_events) for broker in self.brokers}
            self.fetch_metadata([CONSUMER_OFFSETS])
            # The groups of a broker that has left may have moved to one that was asked before.
            if None not in answers.values():
                break
        self.leaderless_shard_count = sum(state.leader_id < 0 for state in self.partitions.values())
        for broker, answer in answers.items():
            if answer is not None:
                # Two brokers report a group that has just moved; a deleted group is an error.
                groups = self._groups_of(broker, answer)
                found |= {group.name: group for group in groups if not group.explained.error_code}
        return [found[name] for name in sorted(found)]

    def _groups_of(self, broker: int, answer: ExplainGroupResponse) -> list[GroupDescription]:
        return [
            GroupDescription(
                coordinator=broker,
                now_ms=answer.now,
                explained=group,
                share=self._share_offsets(broker, group.group_id)
                if group.group_type == SHARE
                else {},
            )
            for group in answer.groups
        ]

    def _share_offsets(self, broker: int, name: str) -> dict[PartitionId, tuple[int, int]]:
        found = share_positions(self._client, broker, name)
        return {
            each: (start, -1 if lag is None else lag)
            for each, (start, lag) in found.items()
            if start >= 0
        }

    def _all_groups_of(self, broker: int, with_events: bool) -> ExplainGroupResponse | None:
        """All groups of a broker, from several pages; None if it has left the cluster."""
        whole = ExplainGroupResponse()
        after = None
        while True:
            request = ExplainGroupRequest(after=after, include_events=with_events)
            answer = self._explain_until_loaded(broker, request)
            if answer is None:
                return None
            whole.now = answer.now
            whole.groups += answer.groups
            if not answer.has_more:
                return whole
            after = answer.groups[-1].group_id

    def _explain_until_loaded(
        self, broker: int, request: ExplainGroupRequest
    ) -> ExplainGroupResponse | None:
        """The answer without an error; None if the broker has left the cluster."""
        deadline = time.monotonic() + self._client.timeout_s
        while True:
            answer = self._client.ask_node(broker, request)
            if answer is not None and not answer.error_code:
                return answer
            self.fetch_metadata(())
            if answer is None and broker not in self.brokers:
                return None
            if time.monotonic() > deadline:
                raise click.ClickException(
                    self._client.silence(broker)
                    if answer is None
                    else f"broker {broker} is still loading groups"
                )
            time.sleep(PAUSE_S)

    def groups(self, names: Iterable[str], *, with_events: bool = False) -> list[GroupDescription]:
        """These groups, in this order; a group that does not exist has an error code."""
        wanted = list(dict.fromkeys(names))
        found: dict[str, GroupDescription] = {}
        deadline = time.monotonic() + self._client.timeout_s
        while True:
            missing = [name for name in wanted if name not in found]
            for broker, here in self._by_coordinator(missing).items():
                request = ExplainGroupRequest(group_ids=here, include_events=with_events)
                answer = self._client.ask_node(broker, request)
                for group in self._groups_of(broker, answer) if answer is not None else ():
                    if group.explained.error_code not in COORDINATOR_ERRORS:
                        found[group.name] = group
            if len(found) == len(wanted):
                return [found[name] for name in wanted]
            if time.monotonic() > deadline:
                name = next(name for name in wanted if name not in found)
                silent = next(iter(self._by_coordinator([name])), None)
                why = "no coordinator is found" if silent is None else self._client.silence(silent)
                raise click.ClickException(f"group {name}: {why}")
            time.sleep(PAUSE_S)

    def existing_groups(
        self, names: Iterable[str], *, with_events: bool = False
    ) -> list[GroupDescription]:
        """As `groups`; ClickException if one of them does not exist or may not be described."""
        groups = self.groups(names, with_events=with_events)
        for group in groups:
            if group.explained.error_code and group.name in configured_groups(self._client):
                raise click.ClickException(configured_only_message(group.name))
            raise_refusal(self._client, GROUP, group.name, group.explained)
        return groups

    def _by_coordinator(self, names: list[str]) -> dict[int, list[str]]:
        by_broker: dict[int, list[str]] = {}
        for name, broker in self._client.coordinators(names).items():
            by_broker.setdefault(broker, []).append(name)
        return by_broker

    # -- lag --------------------------------------------------------------------------------------

    def starts(
        self, group: GroupDescription, partition_ids: Iterable[PartitionId]
    ) -> dict[PartitionId, tuple[int, str]]:
        """Where the group would start in partitions without a committed offset, as a position for
        `lag`, and in words."""
        partition_ids = list(partition_ids)
        if not partition_ids or group.explained.group_type != SHARE:
            return dict.fromkeys(partition_ids, (NO_OFFSET, LOG_START))
        reset = self._share_reset(group.name)
        words = f"{_SHARE_RESET}={reset}"
        if reset == "earliest":
            return dict.fromkeys(partition_ids, (NO_OFFSET, words))
        found: dict[PartitionId, int | None] = {}
        if reset.startswith(DURATION_PREFIX):
            age_ms = duration_ms(reset.removeprefix(DURATION_PREFIX)) or 0
            found = known_offsets(self._client, partition_ids, group.now_ms - age_ms)
        starts = {}
        for partition_id in partition_ids:
            offset = found.get(partition_id)
            starts[partition_id] = (BEYOND_END if offset is None or offset < 0 else offset, words)
        return starts

    def _share_reset(self, name: str) -> str:
        """Where a share group starts that has not read yet; `latest` if it may not be asked."""
        for result in configs.describe(self._client, configs.GROUP, [name], [_SHARE_RESET]):
            for entry in result.configs or ():
                if entry.value is not None:
                    return entry.value
        return "latest"

    def lag(
        self, positions: Iterable[tuple[PartitionId, int]], *, waits_for_leaders: bool = True
    ) -> dict[tuple[PartitionId, int], Lag]:
        """The lag of each offset in its partition. It has an error code where the partition does
        not exist or has no leader; with `waits_for_leaders`, none for LEADERLESS_S."""
        left = list(dict.fromkeys(positions))
        found: dict[tuple[PartitionId, int], Lag] = {}
        leader_timeout_s = min(self._client.timeout_s, LEADERLESS_S) if waits_for_leaders else 0.0
        deadline = time.monotonic() + leader_timeout_s
        while True:
            self.fetch_metadata({topic for (topic, _), _ in left})
            found |= self._lag_attempt(left)
            left = [each for each in left if found[each].error_code in LEADERLESS_ERRORS]
            if not left or time.monotonic() > deadline:
                return found
            time.sleep(PAUSE_S)

    def _lag_attempt(
        self, positions: list[tuple[PartitionId, int]]
    ) -> dict[tuple[PartitionId, int], Lag]:
        found: dict[tuple[PartitionId, int], Lag] = {}
        requests: dict[int, dict[str, DescribeLagRequestTopic]] = {}
        for (name, index), offset in positions:
            state = self.partitions.get((name, index))
            code = ErrorCode.LEADER_NOT_AVAILABLE
            if state is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif state.leader_id >= 0:
                topics = requests.setdefault(state.leader_id, {})
                topics.setdefault(name, DescribeLagRequestTopic(name=name)).partitions.append(
                    DescribeLagRequestPartition(partition_index=index, committed_offset=offset)
                )
            # Replaced by what the leader answers.
            found[(name, index), offset] = Lag(partition_index=index, error_code=code)
        for leader, topics in requests.items():
            answer = self._client.ask_node(leader, DescribeLagRequest(topics=list(topics.values())))
            answered = () if answer is None else zip(topics.values(), answer.topics, strict=True)
            for topic, lags in answered:
                for partition, lag in zip(topic.partitions, lags.partitions, strict=True):
                    position = (topic.name, partition.partition_index), partition.committed_offset
                    found[position] = lag
        return found
