"""`odradek txn`: transactions, and hanging ones."""

import time
from collections.abc import Collection, Iterator
from typing import Final

import click

from odradek.coordinator.transaction.hanging_transactions import (
    MARGIN_MS,
    OpenPartitionTransaction,
    Unfinished,
    is_late,
    is_unknown,
)
from odradek.coordinator.transaction.transaction_metadata import Partition
from odradek.node.cli import configs
from odradek.node.cli.cluster_client import TRANSACTION, ClusterClient, raise_on_error, with_client
from odradek.node.cli.not_found import TOPIC, TRANSACTIONAL_ID, no_such_partition, raise_refusal
from odradek.node.cli.offsets import by_id, by_leader, ids_of
from odradek.node.cli.output import Json, Output, Row
from odradek.node.cli.parameters import duration
from odradek.protocol.messages.partitions import TopicPartitions
from odradek.protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    DescribeTransactionsTransactionState,
    ListTransactionsRequest,
    WritableTxnMarker,
    WriteTxnMarkersRequest,
)

TIMEOUT_MAX_MS: Final = 900_000
"""Kafka's default: transaction.max.timeout.ms."""
STATES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
)
UNFINISHED: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")


class TransactionQueries:
    """Requests about transactions to the brokers of a cluster."""

    def __init__(self, client: ClusterClient, topic: str | None = None) -> None:
        self._client = client
        topics = client.metadata(None if topic is None else [topic]).topics
        for described in topics:
            raise_refusal(client, TOPIC, described.name or "", described)
        self.partitions = by_id(topics)
        """Of the one topic, or of all."""

    def transactions(
        self,
        states: tuple[str, ...] = (),
        older_than_ms: int | None = None,
        producer_ids: Collection[int] = (),
    ) -> Iterator[tuple[int, str, int, str]]:
        """(coordinator, transactional id, producer id, state) of all that the
        brokers list."""
        request = ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=sorted(producer_ids),
            duration_filter=-1 if older_than_ms is None else older_than_ms,
        )
        for broker_id in self._client.broker_ids:
            answer = self._client.ask_broker(broker_id, request)
            raise_on_error(answer, f"broker {broker_id}")
            for listed in answer.transaction_states:
                state = listed.transaction_state
                yield broker_id, listed.transactional_id, listed.producer_id, state

    def describe(self, transactional_id: str) -> DescribeTransactionsTransactionState:
        """One transactional id, from its coordinator."""
        answer = self._client.ask_coordinator(
            transactional_id,
            DescribeTransactionsRequest(transactional_ids=[transactional_id]),
            lambda answer: answer.transaction_states[0],
            key_type=TRANSACTION,
        )
        [state] = answer.transaction_states
        raise_refusal(self._client, TRANSACTIONAL_ID, transactional_id, state)
        return state

    def open_transactions(self) -> Iterator[OpenPartitionTransaction]:
        """Every transaction that is open in a partition, as the leader of the partition reports."""
        for leader, topics in by_leader(self._client, self.partitions).items():
            if leader < 0:
                continue
            request = DescribeProducersRequest(topics=topics)
            answer = self._client.ask_broker(leader, request)
            for partition_id, described in by_id(answer.topics).items():
                for producer in described.active_producers:
                    if producer.current_txn_start_offset >= 0:
                        yield OpenPartitionTransaction(
                            partition_id,
                            producer.producer_id,
                            producer.producer_epoch,
                            producer.coordinator_epoch,
                            producer.current_txn_start_offset,
                            producer.last_timestamp,
                        )

    def unfinished(self, producer_ids: Collection[int]) -> Unfinished:
        """The partitions in which coordinators will end transactions of these producers."""
        unfinished: dict[int, set[Partition]] = {}
        for _, transactional_id, _, _ in self.transactions(UNFINISHED, None, producer_ids):
            state = self.describe(transactional_id)
            unfinished.setdefault(state.producer_id, set()).update(ids_of(state.topics))
        return unfinished

    def hanging(self, older_than_ms: int) -> list[OpenPartitionTransaction]:
        """Open transactions without a record for `older_than_ms` that no coordinator knows."""
        now_ms = int(time.time() * 1000)
        late = [
            found
            for found in self.open_transactions()
            if is_late(found, now_ms=now_ms, limit_ms=older_than_ms)
        ]
        if not late:
            return []
        unfinished = self.unfinished({found.producer_id for found in late})
        # A coordinator does not know a transaction that has ended meanwhile.
        still_open = set(self.open_transactions())
        return [found for found in late if is_unknown(found, unfinished) and found in still_open]

    def silence_max_ms(self) -> int:
        """How long the brokers' watchdogs let a transaction be without a record."""
        return max(map(self._silence_max_ms, self._client.broker_ids))

    def _silence_max_ms(self, broker_id: int) -> int:
        parts = {
            "transaction.max.timeout.ms": TIMEOUT_MAX_MS,
            # Kafka has no such key.
            "transaction.watchdog.margin.ms": MARGIN_MS,
        }
        for result in configs.describe(self._client, configs.BROKER, [str(broker_id)], parts):
            for config in result.configs:
                if config.value is not None and config.name in parts:
                    parts[config.name] = int(config.value)
        return sum(parts.values())


@click.group()
def txn() -> None:
    """List and describe transactions; find and abort hanging ones."""


@txn.command("list")
@click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="Only these.")
@click.option("--older-than", type=duration, metavar="DURATION", help="Only older ones, e.g. 5m.")
@with_client
def list_transactions(
    states: tuple[str, ...], older_than: int | None, client: ClusterClient, output: Output
) -> None:
    """List the transactional ids of all coordinators."""
    found = TransactionQueries(client).transactions(states, older_than)
    rows: list[Row] = [
        {
            "transactional_id": transactional_id,
            "state": state,
            "producer_id": producer_id,
            "coordinator": coordinator,
        }
        for coordinator, transactional_id, producer_id, state in found
    ]
    rows.sort(key=lambda row: str(row["transactional_id"]))
    output.rows(rows, empty="No transactions.")


@txn.command()
@click.argument("names", nargs=-1, required=True, metavar="TRANSACTIONAL_ID...")
@with_client
def describe(names: tuple[str, ...], client: ClusterClient, output: Output) -> None:
    """Show owner, state, age and partitions."""
    cluster = TransactionQueries(client)
    documents = [_document(cluster.describe(name)) for name in names]
    if output.is_json:
        output.document(list(documents))
        return
    for document in documents:
        output.facts(document)


def _document(state: DescribeTransactionsTransactionState) -> dict[str, Json]:
    started_ms = state.transaction_start_time_ms
    return {
        "transactional_id": state.transactional_id,
        "state": state.transaction_state,
        "producer_id": state.producer_id,
        "producer_epoch": state.producer_epoch,
        "timeout_ms": state.transaction_timeout_ms,
        "open_for_s": None if started_ms < 0 else round(time.time() - started_ms / 1000, 1),
        "partitions": [f"{topic}:{index}" for topic, index in ids_of(state.topics)],
    }


@txn.command(short_help="Find transactions that no coordinator will end.")
@click.option("--topic", "-t", help="Look at this topic only.")
@click.option(
    "--older-than",
    type=duration,
    metavar="DURATION",
    help="Without a record for this long; by default as long as the brokers' watchdogs"
    " wait (transaction.max.timeout.ms and transaction.watchdog.margin.ms).",
)
@with_client
def hanging(
    topic: str | None, older_than: int | None, client: ClusterClient, output: Output
) -> None:
    """Find transactions that are open in a partition and that no coordinator will ever end."""
    cluster = TransactionQueries(client, topic)
    limit_ms = cluster.silence_max_ms() if older_than is None else older_than
    rows: list[Row] = [
        {
            "topic": found.partition[0],
            "partition": found.partition[1],
            "start_offset": found.start_offset,
            "producer_id": found.producer_id,
            "producer_epoch": found.producer_epoch,
            "silent_for_s": round(time.time() - found.last_timestamp_ms / 1000, 1),
        }
        for found in cluster.hanging(limit_ms)
    ]
    output.rows(rows, empty="No transaction hangs.")
    if rows:
        output.hint("end one with: odradek txn abort TOPIC PARTITION --start-offset N")


@txn.command(short_help="End a transaction in one partition.")
@click.argument("topic")
@click.argument("partition", type=click.IntRange(min=0))
@click.option(
    "--start-offset",
    type=click.IntRange(min=0),
    required=True,
    help="First offset of the transaction (see `txn hanging`).",
)
@click.option("--force", is_flag=True, help="Even if a coordinator still knows it.")
@with_client
def abort(
    topic: str,
    partition: int,
    start_offset: int,
    force: bool,
    client: ClusterClient,
    output: Output,
) -> None:
    """End a transaction in one partition: its records there count as aborted."""
    cluster = TransactionQueries(client, topic)
    if (topic, partition) not in cluster.partitions:
        raise no_such_partition(topic, [partition], len(cluster.partitions))
    transactions = {
        (each.partition, each.start_offset): each for each in cluster.open_transactions()
    }
    found = transactions.get(((topic, partition), start_offset))
    if found is None:
        raise click.ClickException(
            f"{topic}:{partition} has no open transaction that begins at {start_offset}"
        )
    if not force and not is_unknown(found, cluster.unfinished((found.producer_id,))):
        raise click.ClickException(
            f"the coordinator of producer {found.producer_id} still has this transaction, and"
            " aborts it at its timeout; --force aborts it in this partition now"
        )
    request = WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=found.producer_id,
                producer_epoch=found.producer_epoch,
                topics=[TopicPartitions(name=topic, partitions=[partition])],
                coordinator_epoch=max(found.coordinator_epoch, 0),
            )
        ]
    )
    answer = client.ask_broker(cluster.partitions[found.partition].leader_id, request)
    raise_on_error(answer.markers[0].topics[0].partitions[0], f"{topic}:{partition}")
    output.done(
        f"Ended the transaction of producer {found.producer_id} in {topic}:{partition}",
        {"topic": topic, "partition": partition, "producer_id": found.producer_id},
    )
