"""`odradek txn`: transactions, and those that hang."""

import time
from collections.abc import Iterator
from typing import Final, NamedTuple

import click

from node.cli.client import Connection, with_connection
from node.cli.output import Json, Output, Row, with_output
from node.cli.parameters import duration
from node.cli.session import Session
from protocol.errors import ErrorCode
from protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsTransactionState,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TopicRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

KEY_TYPE_TRANSACTION: Final = 1
HANGING_AFTER: Final = "15m"
"""As long as a broker lets a transaction take by default."""
STATES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
)


class Open(NamedTuple):
    """A transaction that is open in a partition."""

    topic: str
    partition: int
    leader: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp_ms: int


class Cluster:
    """The brokers of the cluster and their partitions, as one of them tells them."""

    def __init__(self, session: Session, topic: str | None = None) -> None:
        self._session = session
        topics = None if topic is None else [MetadataRequestTopic(name=topic)]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        self._metadata = session.ask(request, MetadataResponse)
        for found in self._metadata.topics:
            if found.error_code:
                raise click.ClickException(
                    f"topic {found.name}: {ErrorCode(found.error_code).message}"
                )
        self.broker_ids = sorted(broker.node_id for broker in self._metadata.brokers)
        session.learn({b.node_id: (b.host, b.port) for b in self._metadata.brokers})

    def transactions(
        self, states: tuple[str, ...] = (), older_than_ms: int | None = None
    ) -> Iterator[tuple[int, str, int, str]]:
        """(coordinator, transactional id, producer id, state) of all that the brokers list."""
        request = ListTransactionsRequest(
            state_filters=list(states),
            duration_filter=-1 if older_than_ms is None else older_than_ms,
        )
        for broker_id in self.broker_ids:
            answer = self._session.ask_node(broker_id, request, ListTransactionsResponse)
            if answer is None:
                raise click.ClickException(f"broker {broker_id} does not answer")
            if answer.error_code:
                message = ErrorCode(answer.error_code).message
                raise click.ClickException(f"broker {broker_id}: {message}; try again")
            for known in answer.transaction_states:
                state = known.transaction_state
                yield broker_id, known.transactional_id, known.producer_id, state

    def describe(self, transactional_id: str) -> DescribeTransactionsTransactionState:
        """One transactional id, from its coordinator."""
        request = FindCoordinatorRequest(
            key_type=KEY_TYPE_TRANSACTION, coordinator_keys=[transactional_id]
        )
        found = self._session.ask(
            request,
            FindCoordinatorResponse,
            again=lambda answer: (
                answer.coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            ),
        ).coordinators[0]
        question = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        answer = None
        if not found.error_code:
            answer = self._session.ask_node(found.node_id, question, DescribeTransactionsResponse)
        if answer is None:
            raise click.ClickException(f"{transactional_id}: its coordinator does not answer")
        [state] = answer.transaction_states
        if state.error_code:
            message = ErrorCode(state.error_code).message
            raise click.ClickException(f"{transactional_id}: {message}")
        return state

    def open_transactions(self) -> Iterator[Open]:
        """Every transaction that is open in a partition, as the partitions' leaders know it."""
        led: dict[int, dict[str, list[int]]] = {}
        for topic in self._metadata.topics:
            for partition in topic.partitions:
                if topic.name is not None and partition.leader_id >= 0:
                    topics = led.setdefault(partition.leader_id, {})
                    topics.setdefault(topic.name, []).append(partition.partition_index)
        for leader, topics in led.items():
            request = DescribeProducersRequest(
                topics=[
                    TopicRequest(name=name, partition_indexes=indexes)
                    for name, indexes in topics.items()
                ]
            )
            answer = self._session.ask_node(leader, request, DescribeProducersResponse)
            if answer is None:
                raise click.ClickException(f"broker {leader} does not answer")
            for described in answer.topics:
                for found in described.partitions:
                    for producer in found.active_producers:
                        if producer.current_txn_start_offset >= 0:
                            yield Open(
                                described.name,
                                found.partition_index,
                                leader,
                                producer.producer_id,
                                producer.producer_epoch,
                                producer.coordinator_epoch,
                                producer.current_txn_start_offset,
                                producer.last_timestamp,
                            )

    def is_known(self, found: Open) -> bool:
        """Whether a coordinator has the transaction and will end it in that partition."""
        for _, transactional_id, producer_id, _ in self.transactions():
            if producer_id == found.producer_id:
                state = self.describe(transactional_id)
                return any(
                    topic.topic == found.topic and found.partition in topic.partitions
                    for topic in state.topics
                )
        return False


@click.group()
def txn() -> None:
    """List and describe transactions; find and end those that hang."""


@txn.command("list")
@click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="Only these.")
@click.option(
    "--older-than", type=duration, metavar="DURATION", help="Only such as are older, e.g. 5m."
)
@with_connection
@with_output
def list_transactions(
    states: tuple[str, ...], older_than: int | None, connection: Connection, output: Output
) -> None:
    """List the transactional ids of all coordinators."""
    with Session(connection) as session:
        rows: list[Row] = [
            {
                "transactional_id": transactional_id,
                "state": state,
                "producer_id": producer_id,
                "coordinator": coordinator,
            }
            for coordinator, transactional_id, producer_id, state in Cluster(session).transactions(
                states, older_than
            )
        ]
    rows.sort(key=lambda row: str(row["transactional_id"]))
    output.rows(
        rows, ["transactional_id", "state", "producer_id", "coordinator"], empty="No transactions."
    )


@txn.command()
@click.argument("names", nargs=-1, required=True, metavar="TRANSACTIONAL_ID...")
@with_connection
@with_output
def describe(names: tuple[str, ...], connection: Connection, output: Output) -> None:
    """Show owner, state, age and partitions."""
    with Session(connection) as session:
        cluster = Cluster(session)
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
            f"{topic.topic}:{index}" for topic in state.topics for index in topic.partitions
        ],
    }


@txn.command()
@click.option("--topic", "-t", help="Look at this topic only.")
@click.option(
    "--older-than",
    type=duration,
    default=HANGING_AFTER,
    show_default=True,
    metavar="DURATION",
    help="Of which nothing has been heard for so long.",
)
@with_connection
@with_output
def hanging(topic: str | None, older_than: int, connection: Connection, output: Output) -> None:
    """Find transactions that are open in a partition and that no coordinator will ever end."""
    before_ms = time.time() * 1000 - older_than
    with Session(connection) as session:
        cluster = Cluster(session, topic)
        rows: list[Row] = [
            {
                "topic": found.topic,
                "partition": found.partition,
                "start_offset": found.start_offset,
                "producer_id": found.producer_id,
                "producer_epoch": found.producer_epoch,
                "silent_for_s": round(time.time() - found.last_timestamp_ms / 1000, 1),
            }
            for found in cluster.open_transactions()
            if found.last_timestamp_ms <= before_ms and not cluster.is_known(found)
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
    "--start-offset", type=click.IntRange(min=0), required=True, help="Where it begins (hanging)."
)
@click.option("--force", is_flag=True, help="Also if a coordinator still knows it.")
@with_connection
@with_output
def abort(
    topic: str,
    partition: int,
    start_offset: int,
    force: bool,
    connection: Connection,
    output: Output,
) -> None:
    """End a transaction in one partition: its records there count as aborted."""
    with Session(connection) as session:
        cluster = Cluster(session, topic)
        found = next(
            (
                each
                for each in cluster.open_transactions()
                if each.partition == partition and each.start_offset == start_offset
            ),
            None,
        )
        if found is None:
            raise click.ClickException(
                f"{topic}:{partition} has no open transaction that begins at {start_offset}"
            )
        if not force and cluster.is_known(found):
            raise click.ClickException(
                f"producer {found.producer_id} still has this transaction at its coordinator, which"
                " ends it when its time is over; --force ends it here all the same"
            )
        request = WriteTxnMarkersRequest(
            markers=[
                WritableTxnMarker(
                    producer_id=found.producer_id,
                    producer_epoch=found.producer_epoch,
                    topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
                    coordinator_epoch=max(found.coordinator_epoch, 0),
                )
            ]
        )
        answer = session.ask_node(found.leader, request, WriteTxnMarkersResponse)
    if answer is None:
        raise click.ClickException(f"broker {found.leader} does not answer")
    code = answer.markers[0].topics[0].partitions[0].error_code
    if code:
        raise click.ClickException(f"{topic}:{partition}: {ErrorCode(code).message}")
    output.done(
        f"Ended the transaction of producer {found.producer_id} in {topic}:{partition}",
        {"topic": topic, "partition": partition, "producer_id": found.producer_id},
    )
