"""What the cluster knows of groups: members and commits from coordinators, lag from leaders.

By our own APIs (protocol/messages/diagnostics.py), which no other broker serves. Groups of a moving
coordinator are asked for again, and so are partitions without a leader, until the timeout of the
connection is over. Called by the `group_*` commands.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import click

from odradek.cluster.metadata.image import ConfigResourceType
from odradek.cluster.metadata.topic_names import CONSUMER_OFFSETS
from odradek.node.blocking_client import NotABrokerError
from odradek.node.cli.cluster_client import COORDINATOR_ERRORS, PAUSE_S, ClusterClient
from odradek.node.cli.connection import CONNECT_TIMEOUT_S, ClusterConnection
from odradek.node.cli.group_offsets import share_positions
from odradek.node.cli.group_types import SHARE
from odradek.protocol.errors import ErrorCode, ProtocolError
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

PartitionId: TypeAlias = tuple[str, int]
_GROUP: Final = ConfigResourceType.GROUP
LEADERLESS_S: Final = 10.0
"""How long a partition without a leader is asked for, as a new one is for a moment."""
_LEADERLESS: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
    }
)


def is_odradek_cluster(connection: ClusterConnection) -> bool:
    """Whether the cluster's brokers are Odradek's: whether they serve ExplainGroup."""
    for address in connection.addresses:
        try:
            with connection.connect(*address, CONNECT_TIMEOUT_S) as asker:
                asker.ask(ExplainGroupRequest(group_ids=[]))
                return True
        except (OSError, NotABrokerError, ProtocolError):
            continue
    return False


def configured_groups(client: ClusterClient) -> set[str]:
    """Groups of which something was set."""
    request = ListConfigResourcesRequest(resource_types=[_GROUP])
    answer = client.ask(request)
    return {resource.resource_name for resource in answer.config_resources}


def configured_only_message(name: str) -> str:
    """Of a group that has settings and nothing else: not joined yet, or ephemeral and gone."""
    return (
        f"group {name} has settings, but no members and no committed offsets:"
        f" `odradek config list group {name}`"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group as its coordinator told it; `now_ms` is the coordinator's clock then."""

    coordinator: int
    now_ms: int
    told: ExplainedGroup
    share: Mapping[PartitionId, tuple[int, int]] = field(default_factory=dict)
    """Of a share group: where it begins to read, and its own count of what it has before it."""

    @property
    def name(self) -> str:
        """Its id."""
        return self.told.group_id

    def commits(self) -> dict[PartitionId, int]:
        """Committed offsets, or a share group's; a place with none has only what a transaction may
        bring."""
        if self.share:
            return {partition_id: start for partition_id, (start, _) in self.share.items()}
        return {
            (topic.name, commit.partition_index): commit.committed_offset
            for topic in self.told.commits
            for commit in topic.partitions
        }

    def topics(self) -> list[str]:
        """Topics that it subscribes to or has offsets in."""
        topics = {partition_id[0] for partition_id in self.share}
        return sorted({*self.told.topics, *(topic.name for topic in self.told.commits), *topics})


class GroupQueries:
    """Questions about groups, over one session."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self.brokers: list[int] = []
        self.partitions: dict[PartitionId, MetadataResponsePartition] = {}
        """Of the topics that were looked up last."""
        self.leaderless_shard_count = 0
        """How many coordinators nobody was when all groups were asked for."""
        self.fetch_metadata(())

    def fetch_metadata(self, topics: Iterable[str]) -> None:
        """Learn who leads these topics' partitions; topics that are gone have none."""
        metadata = self._client.metadata(topics)
        self.brokers = sorted(broker.node_id for broker in metadata.brokers)
        self.partitions = {
            (topic.name, partition.partition_index): partition
            for topic in metadata.topics
            if topic.name is not None and not topic.error_code
            for partition in topic.partitions
        }

    # -- groups -----------------------------------------------------------------------------------

    def all_groups(self, *, with_events: bool = False) -> list[GroupDescription]:
        """Every group of the cluster, by name."""
        found: dict[str, GroupDescription] = {}
        while True:
            answers = {broker: self._all_groups_of(broker, with_events) for broker in self.brokers}
            self.fetch_metadata([CONSUMER_OFFSETS])
            # The groups of one that has gone may be with one that was asked before.
            if None not in answers.values():
                break
        self.leaderless_shard_count = sum(state.leader_id < 0 for state in self.partitions.values())
        for broker, answer in answers.items():
            if answer is not None:
                # One that has just moved is told by both, one that has just gone with an error.
                there = self._groups_of(broker, answer)
                found |= {group.name: group for group in there if not group.told.error_code}
        return [found[name] for name in sorted(found)]

    def _groups_of(self, broker: int, answer: ExplainGroupResponse) -> list[GroupDescription]:
        return [
            GroupDescription(
                coordinator=broker,
                now_ms=answer.now,
                told=told,
                share=self._share_offsets(broker, told.group_id)
                if told.group_type == SHARE
                else {},
            )
            for told in answer.groups
        ]

    def _share_offsets(self, broker: int, name: str) -> dict[PartitionId, tuple[int, int]]:
        found = share_positions(self._client, broker, name)
        return {
            each: (start, -1 if lag is None else lag)
            for each, (start, lag) in found.items()
            if start >= 0
        }

    def _all_groups_of(self, broker: int, with_events: bool) -> ExplainGroupResponse | None:
        """All groups of a broker, which tells some at a time; None if it has gone."""
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
        """A whole answer; None if the broker has gone."""
        deadline = time.monotonic() + self._client.timeout_s
        while True:
            answer = self._client.ask_node(broker, request)
            if answer is not None and not answer.error_code:
                return answer
            self.fetch_metadata(())
            if answer is None and broker not in self.brokers:
                return None
            if time.monotonic() > deadline:
                why = "does not answer" if answer is None else "is still loading groups"
                raise click.ClickException(f"broker {broker} {why}")
            time.sleep(PAUSE_S)

    def groups(self, names: Iterable[str], *, with_events: bool = False) -> list[GroupDescription]:
        """These groups, in this order; one that does not exist carries its error."""
        wanted = list(dict.fromkeys(names))
        found: dict[str, GroupDescription] = {}
        deadline = time.monotonic() + self._client.timeout_s
        while True:
            missing = [name for name in wanted if name not in found]
            for broker, here in self._by_coordinator(missing).items():
                request = ExplainGroupRequest(group_ids=here, include_events=with_events)
                answer = self._client.ask_node(broker, request)
                for group in self._groups_of(broker, answer) if answer is not None else ():
                    if group.told.error_code not in COORDINATOR_ERRORS:
                        found[group.name] = group
            if len(found) == len(wanted):
                return [found[name] for name in wanted]
            if time.monotonic() > deadline:
                name = next(name for name in wanted if name not in found)
                raise click.ClickException(f"group {name}: its coordinator does not answer")
            time.sleep(PAUSE_S)

    def existing_groups(
        self, names: Iterable[str], *, with_events: bool = False
    ) -> list[GroupDescription]:
        """As `groups`; ClickException if one of them does not exist or may not be seen."""
        groups = self.groups(names, with_events=with_events)
        for group in groups:
            if group.told.error_code:
                if group.name in configured_groups(self._client):
                    raise click.ClickException(configured_only_message(group.name))
                message = group.told.error_message or ErrorCode(group.told.error_code).message
                raise click.ClickException(f"group {group.name}: {message}")
        return groups

    def _by_coordinator(self, names: list[str]) -> dict[int, list[str]]:
        by_broker: dict[int, list[str]] = {}
        for name, broker in self._client.coordinators(names).items():
            by_broker.setdefault(broker, []).append(name)
        return by_broker

    # -- lag --------------------------------------------------------------------------------------

    def lag(
        self, positions: Iterable[tuple[PartitionId, int]], *, waits_for_leaders: bool = True
    ) -> dict[tuple[PartitionId, int], Lag]:
        """How far behind each (place, offset) is; places that are gone or, for long if it
        `waits_for_leaders`, without a leader are told so."""
        wanted = dict.fromkeys(positions)
        found: dict[tuple[PartitionId, int], Lag] = {}
        leader_timeout_s = min(self._client.timeout_s, LEADERLESS_S) if waits_for_leaders else 0.0
        deadline = time.monotonic() + leader_timeout_s
        while True:
            left = [position for position in wanted if position not in found]
            self.fetch_metadata({partition_id[0] for partition_id, _ in left})
            found |= self._lag_attempt(left)
            settled = all(found[position].error_code not in _LEADERLESS for position in left)
            if settled or time.monotonic() > deadline:
                return found
            for position in left:
                if found[position].error_code in _LEADERLESS:
                    del found[position]
            time.sleep(PAUSE_S)

    def _lag_attempt(
        self, positions: list[tuple[PartitionId, int]]
    ) -> dict[tuple[PartitionId, int], DescribeLagResponsePartition]:
        found: dict[tuple[PartitionId, int], Lag] = {}
        led: dict[int, dict[str, list[tuple[int, int]]]] = {}
        for (name, index), offset in positions:
            state = self.partitions.get((name, index))
            if state is None:
                found[(name, index), offset] = _failed(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif state.leader_id < 0:
                found[(name, index), offset] = _failed(index, ErrorCode.LEADER_NOT_AVAILABLE)
            else:
                there = led.setdefault(state.leader_id, {}).setdefault(name, [])
                there.append((index, offset))
        for leader, topics in led.items():
            found |= self._lag_from_leader(leader, topics)
        return found

    def _lag_from_leader(
        self, leader: int, topics: Mapping[str, list[tuple[int, int]]]
    ) -> dict[tuple[PartitionId, int], DescribeLagResponsePartition]:
        asked = [
            DescribeLagRequestTopic(
                name=name,
                partitions=[
                    DescribeLagRequestPartition(partition_index=index, committed_offset=offset)
                    for index, offset in positions
                ],
            )
            for name, positions in topics.items()
        ]
        answer = self._client.ask_node(leader, DescribeLagRequest(topics=asked))
        if answer is None:
            return {
                ((topic.name, p.partition_index), p.committed_offset): _failed(
                    p.partition_index, ErrorCode.LEADER_NOT_AVAILABLE
                )
                for topic in asked
                for p in topic.partitions
            }
        return {
            ((topic.name, p.partition_index), p.committed_offset): told
            for topic, answered in zip(asked, answer.topics, strict=True)
            for p, told in zip(topic.partitions, answered.partitions, strict=True)
        }


Lag: TypeAlias = DescribeLagResponsePartition


def _failed(index: int, code: ErrorCode) -> DescribeLagResponsePartition:
    return DescribeLagResponsePartition(partition_index=index, error_code=code)
