"""The state of partitions, from every broker that has a replica.

The leader knows the log; every broker knows the clients that fetch from it; coordinators know the
transactions, of which a log has only the producer ids. Called by group_explain.py and
topic_explain.py.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace

from odradek.node.cli.cluster_client import TRANSACTION, ClusterClient
from odradek.node.cli.eligible_leaders import with_eligible_leaders
from odradek.node.cli.findings import BlockingTransaction, PartitionView, WaitingArchive
from odradek.node.cli.group_queries import GroupQueries
from odradek.node.cli.offsets import PartitionId, by_id, by_topic
from odradek.protocol.messages.diagnostics import (
    ExplainedPartition,
    ExplainTopicRequest,
    ExplainTopicRequestTopic,
)
from odradek.protocol.messages.metadata import MetadataResponsePartition
from odradek.protocol.messages.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsTransactionState,
    ListTransactionsRequest,
)


def collect_partition_views(
    client: ClusterClient, queries: GroupQueries, partition_ids: Iterable[PartitionId], now_ms: int
) -> dict[PartitionId, PartitionView]:
    """The partitions of these that exist; ages are relative to `now_ms`."""
    wanted = set(partition_ids)
    queries.fetch_metadata({topic for topic, _ in wanted})
    states = {
        partition_id: queries.partitions[partition_id]
        for partition_id in sorted(wanted)
        if partition_id in queries.partitions
    }
    reports, problems = _reports(client, queries, states)
    views = {
        partition_id: replace(
            _view(partition_id, state, queries.brokers, reports[partition_id]),
            storage_problems=tuple(
                (broker, problems[broker]) for broker in state.replica_nodes if broker in problems
            ),
        )
        for partition_id, state in states.items()
    }
    led = with_eligible_leaders(client, views.values())
    return _with_transactions(client, queries, {view.partition_id: view for view in led}, now_ms)


def _reports(
    client: ClusterClient,
    queries: GroupQueries,
    states: dict[PartitionId, MetadataResponsePartition],
) -> tuple[dict[PartitionId, dict[int, ExplainedPartition]], dict[int, str]]:
    """Each partition as the brokers that have a replica of it report it, by broker; and what keeps
    brokers from writing. Fenced brokers are not asked: they would not answer, or with what was true
    before."""
    hosted: dict[int, list[PartitionId]] = {}
    for partition_id, state in states.items():
        for broker in set(state.replica_nodes) & set(queries.brokers):
            hosted.setdefault(broker, []).append(partition_id)
    reports: dict[PartitionId, dict[int, ExplainedPartition]] = {each: {} for each in states}
    problems: dict[int, str] = {}
    for broker, partition_ids in hosted.items():
        topics = [
            ExplainTopicRequestTopic(name=topic.name, partitions=topic.partitions)
            for topic in by_topic(partition_ids)
        ]
        answer = client.ask_node(broker, ExplainTopicRequest(topics=topics))
        if answer is None:
            continue
        if answer.storage_problem is not None:
            problems[broker] = answer.storage_problem
        for partition_id, partition in by_id(answer.topics).items():
            reports[partition_id][broker] = partition
    return reports, problems


def _view(
    partition_id: PartitionId,
    state: MetadataResponsePartition,
    serving: Container[int],
    reports: dict[int, ExplainedPartition],
) -> PartitionView:
    readers = [reader for partition in reports.values() for reader in partition.readers]
    view = PartitionView(
        partition_id=partition_id,
        leader=state.leader_id,
        replicas=tuple(state.replica_nodes),
        in_sync=tuple(state.isr_nodes),
        fenced=tuple(replica for replica in state.replica_nodes if replica not in serving),
        offline=tuple(replica for replica in state.offline_replicas if replica in serving),
        readers=tuple(sorted(readers, key=lambda reader: reader.idle_ms)),
    )
    leading = reports.get(state.leader_id)
    if leading is None or leading.error_code or leading.high_watermark < 0:
        return view
    transaction = None
    if leading.open_producer_id >= 0:
        transaction = BlockingTransaction(
            producer_id=leading.open_producer_id,
            since_offset=leading.open_since_offset,
            silent_ms=leading.open_silent_ms,
        )
    archive = None
    if leading.archive_group:
        archive = WaitingArchive(
            group=leading.archive_group,
            archived_offset=leading.archived_offset,
            held_bytes=leading.archive_held_bytes,
        )
    return replace(
        view,
        archive=archive,
        min_in_sync=leading.min_in_sync_replicas,
        log_start_offset=leading.log_start_offset,
        last_stable_offset=leading.last_stable_offset,
        high_watermark=leading.high_watermark,
        log_end_offset=leading.log_end_offset,
        sharing=tuple(leading.sharing),
        transaction=transaction,
    )


def _with_transactions(
    client: ClusterClient,
    queries: GroupQueries,
    views: dict[PartitionId, PartitionView],
    now_ms: int,
) -> dict[PartitionId, PartitionView]:
    """The partitions with what coordinators know of their open transactions."""
    producer_ids = {v.transaction.producer_id for v in views.values() if v.transaction is not None}
    states = _transactions(client, queries, sorted(producer_ids)) if producer_ids else {}
    named = dict(views)
    for partition_id, view in views.items():
        if view.transaction is None or view.transaction.producer_id not in states:
            continue
        state = states[view.transaction.producer_id]
        started_ms = state.transaction_start_time_ms
        transaction = replace(
            view.transaction,
            transactional_id=state.transactional_id,
            state=state.transaction_state,
            age_ms=None if started_ms < 0 else max(now_ms - started_ms, 0),
            timeout_ms=state.transaction_timeout_ms,
        )
        named[partition_id] = replace(view, transaction=transaction)
    return named


def _transactions(
    client: ClusterClient, queries: GroupQueries, producer_ids: list[int]
) -> dict[int, DescribeTransactionsTransactionState]:
    """The transactions of these producers that coordinators know, by producer id."""
    listed_by: dict[str, int] = {}
    listing = ListTransactionsRequest(state_filters=[], producer_id_filters=producer_ids)
    for broker in queries.brokers:
        answer = client.ask_node(broker, listing)
        for listed in answer.transaction_states if answer is not None else ():
            listed_by[listed.transactional_id] = broker
    coordinators = client.coordinators(sorted(listed_by), TRANSACTION) if listed_by else {}
    known: dict[int, DescribeTransactionsTransactionState] = {}
    for transactional_id, broker in (listed_by | coordinators).items():
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        described = client.ask_node(broker, request)
        for state in described.transaction_states if described is not None else ():
            if not state.error_code:
                known[state.producer_id] = state
    return known
