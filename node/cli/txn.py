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
from odradek.node.cli.cluster_client import TRANSACTION, ClusterClient
from odradek.node.cli.connection import ClusterConnection, with_connection
from odradek.node.cli.output import Json, Output, Row, with_output
from odradek.node.cli.parameters import duration
from odradek.protocol.errors import ErrorCode
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
"""As long as a broker lets a transaction take by default."""
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
    """The brokers of the cluster and their partitions, as one of them tells them."""

    def __init__(self, client: ClusterClient, topic: str | None = None) -> None:
        self._client = client
        self._metadata = client.metadata(None if topic is None else [topic])
        for found in self._metadata.topics:
            if found.error_code:
                raise click.ClickException(
                    f"topic {found.name}: {ErrorCode(found.error_code).message}"
                )
        self.broker_ids = sorted(broker.node_id for broker in self._metadata.brokers)

    def transactions(
        self,
        states: tuple[str, ...] = (),
        older_than_ms: int | None = None,
        producer_ids: Collection[int] = (),
    ) -> Iterator[tuple[int, str, int, str]]:
        """(coordinator, transactional id, producer id, state) of all that the brokers list."""
        request = ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=sorted(producer_ids),
            duration_filter=-1 if older_than_ms is None else older_than_ms,
        )
        for broker_id in self.broker_ids:
            answer = self._client.ask_broker(broker_id, request)
            if answer.error_code:
                message = ErrorCode(answer.error_code).message
                raise click.ClickException(f"broker {broker_id}: {message}; try again")
            for known in answer.transaction_states:
                state = known.transaction_state
                yield broker_id, known.transactional_id, known.producer_id, state

    def describe(self, transactional_id: str) -> DescribeTransactionsTransactionState:
        """One transactional id, from its coordinator."""
        answer = self._client.ask_coordinator(
            transactional_id,
            DescribeTransactionsRequest(transactional_ids=[transactional_id]),
            lambda told: told.transaction_states[0].error_code,
            key_type=TRANSACTION,
        )
        if answer is None:
            raise click.ClickException(f"{transactional_id}: its coordinator does not answer")
        [state] = answer.transaction_states
        if state.error_code:
            message = ErrorCode(state.error_code).message
            raise click.ClickException(f"{transactional_id}: {message}")
        return state

    def open_transactions(self) -> Iterator[OpenPartitionTransaction]:
        """Every transaction that is open in a partition, as the partitions' leaders know it."""
        led: dict[int, dict[str, list[int]]] = {}
        for (name, index), leader in self.leaders().items():
            led.setdefault(leader, {}).setdefault(name, []).append(index)
        for leader, topics in led.items():
            request = DescribeProducersRequest(
                topics=[
                    TopicPartitions(name=name, partitions=indexes)
                    for name, indexes in topics.items()
                ]
            )
            answer = self._client.ask_broker(leader, request)
            for described in answer.topics:
                for found in described.partitions:
                    for producer in found.active_producers:
                        if producer.current_txn_start_offset >= 0:
                            yield OpenPartitionTransaction(
                                (described.name, found.partition_index),
                                producer.producer_id,
                                producer.producer_epoch,
                                producer.coordinator_epoch,
                                producer.current_txn_start_offset,
                                producer.last_timestamp,
                            )

    def leaders(self) -> dict[Partition, int]:
        """The leader of each partition that has one."""
        return {
            (topic.name, partition.partition_index): partition.leader_id
            for topic in self._metadata.topics
            for partition in topic.partitions
            if topic.name is not None and partition.leader_id >= 0
        }

    def unfinished(self, producer_ids: Collection[int]) -> Unfinished:
        """Where the coordinators are going to end transactions of these producers."""
        unfinished: dict[int, set[Partition]] = {}
        for _, transactional_id, _, _ in self.transactions(UNFINISHED, None, producer_ids):
            state = self.describe(transactional_id)
            unfinished.setdefault(state.producer_id, set()).update(
                (topic.name, index) for topic in state.topics for index in topic.partitions
            )
        return unfinished

    def hanging(self, older_than_ms: int) -> list[OpenPartitionTransaction]:
        """Those that are open, were not heard of for so long, and are known to no coordinator."""
        now_ms = int(time.time() * 1000)
        late = [
            found
            for found in self.open_transactions()
            if is_late(found, now_ms=now_ms, limit_ms=older_than_ms)
        ]
        if not late:
            return []
        unfinished = self.unfinished({found.producer_id for found in late})
        # What has ended meanwhile is unknown because of that.
        still_open = set(self.open_transactions())
        return [found for found in late if is_unknown(found, unfinished) and found in still_open]

    def silence_max_ms(self) -> int:
        """How long a transaction may be silent, as the brokers' watchdogs see it."""
        return max(map(self._silence_max_ms, self.broker_ids), default=TIMEOUT_MAX_MS + MARGIN_MS)

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
@with_connection
@with_output
def list_transactions(
    states: tuple[str, ...], older_than: int | None, connection: ClusterConnection, output: Output
) -> None:
    """List the transactional ids of all coordinators."""
    with ClusterClient(connection) as client:
        rows: list[Row] = [
            {
                "transactional_id": transactional_id,
                "state": state,
                "producer_id": producer_id,
                "coordinator": coordinator,
            }
            for coordinator, transactional_id, producer_id, state in TransactionQueries(
                client
            ).transactions(states, older_than)
        ]
    rows.sort(key=lambda row: str(row["transactional_id"]))
    output.rows(
        rows, ["transactional_id", "state", "producer_id", "coordinator"], empty="No transactions."
    )


@txn.command()
@click.argument("names", nargs=-1, required=True, metavar="TRANSACTIONAL_ID...")
@with_connection
@with_output
def describe(names: tuple[str, ...], connection: ClusterConnection, output: Output) -> None:
    """Show owner, state, age and partitions."""
    with ClusterClient(connection) as client:
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
        "partitions": [
            f"{topic.name}:{index}" for topic in state.topics for index in topic.partitions
        ],
    }


@txn.command()
@click.option("--topic", "-t", help="Look at this topic only.")
@click.option(
    "--older-than",
    type=duration,
    metavar="DURATION",
    help="Without a record for this long; by default as long as the brokers' watchdogs"
    " wait (transaction.max.timeout.ms and transaction.watchdog.margin.ms).",
)
@with_connection
@with_output
def hanging(
    topic: str | None, older_than: int | None, connection: ClusterConnection, output: Output
) -> None:
    """Find transactions that are open in a partition and that no coordinator will ever end."""
    with ClusterClient(connection) as client:
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
    columns = [
        "topic",
        "partition",
        "start_offset",
        "producer_id",
        "producer_epoch",
        "silent_for_s",
    ]
    output.rows(rows, columns, empty="No transaction hangs.")
    if rows:
        output.hint("end one with: odradek txn abort TOPIC PARTITION --start-offset N")


@txn.command()
@click.argument("topic")
@click.argument("partition", type=click.IntRange(min=0))
@click.option(
    "--start-offset",
    type=click.IntRange(min=0),
    required=True,
    help="First offset of the transaction (see `txn hanging`).",
)
@click.option("--force", is_flag=True, help="Even if a coordinator still knows it.")
@with_connection
@with_output
def abort(
    topic: str,
    partition: int,
    start_offset: int,
    force: bool,
    connection: ClusterConnection,
    output: Output,
) -> None:
    """End a transaction in one partition: its records there count as aborted."""
    with ClusterClient(connection) as client:
        cluster = TransactionQueries(client, topic)
        found = next(
            (
                each
                for each in cluster.open_transactions()
                if each.partition == (topic, partition) and each.start_offset == start_offset
            ),
            None,
        )
        if found is None:
            raise click.ClickException(
                f"{topic}:{partition} has no open transaction that begins at {start_offset}"
            )
        if not force and not is_unknown(found, cluster.unfinished((found.producer_id,))):
            raise click.ClickException(
                f"producer {found.producer_id} still has this transaction at its coordinator, which"
                " aborts it at its timeout; --force aborts it here now"
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
        leader = cluster.leaders()[found.partition]
        answer = client.ask_broker(leader, request)
    code = answer.markers[0].topics[0].partitions[0].error_code
    if code:
        raise click.ClickException(f"{topic}:{partition}: {ErrorCode(code).message}")
    output.done(
        f"Ended the transaction of producer {found.producer_id} in {topic}:{partition}",
        {"topic": topic, "partition": partition, "producer_id": found.producer_id},
    )
