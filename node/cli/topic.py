"""`odradek topic`: topics of any Kafka cluster."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

import click

from odradek.node.cli import configs as configs_of
from odradek.node.cli import offsets
from odradek.node.cli.cluster_client import (
    ClusterClient,
    error_text,
    raise_on_error,
    raise_refusals,
    with_client,
)
from odradek.node.cli.completion import complete_topic
from odradek.node.cli.not_found import TOPIC, no_such_partition, raise_refusal, refusal_text
from odradek.node.cli.output import Json, Output, Row, known
from odradek.node.cli.parameters import TopicSelection, moment, pair, topic_selection
from odradek.node.cli.topic_explain import explain
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.offsets import DeleteRecordsPartitionResult, DeleteRecordsRequest
from odradek.protocol.messages.partitions import PartitionOffset, TopicOffsets
from odradek.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from odradek.protocol.types import uuid_to_text

BROKER_DEFAULT = -1  # CreateTopics: the broker's num.partitions, default.replication.factor


@click.group()
def topic() -> None:
    """Create, describe, change and delete topics."""


topic.add_command(explain)


@topic.command("list", short_help="List topics, or those that match 'orders-*'.")
@click.argument("pattern", default="*")
@click.option("--internal", is_flag=True, help="Show topics that start with two underscores too.")
@with_client
def list_topics(pattern: str, internal: bool, client: ClusterClient, output: Output) -> None:
    """List topics, all or those that match a PATTERN such as 'orders-*'."""
    found = client.metadata(None).topics
    rows: list[Row] = [
        {
            "topic": topic.name,
            "partitions": len(topic.partitions),
            "replication_factor": max((len(p.replica_nodes) for p in topic.partitions), default=0),
            "under_replicated": sum(
                len(p.isr_nodes) < len(p.replica_nodes) for p in topic.partitions
            ),
        }
        for topic in sorted(found, key=lambda topic: topic.name or "")
        if topic.name is not None
        and fnmatch.fnmatchcase(topic.name, pattern)
        and (internal or not topic.name.startswith("__"))
    ]
    output.rows(rows, empty="No topics. Create one: odradek topic create NAME")


@topic.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--partitions", "-p", type=click.IntRange(min=1), help="Default: the broker's.")
@click.option(
    "--replication-factor", "-r", type=click.IntRange(min=1), help="Default: the broker's."
)
@click.option("--config", "-c", "configs", type=pair, multiple=True, metavar="KEY=VALUE")
@click.option("--if-not-exists", is_flag=True, help="An existing topic is not an error.")
@click.option("--dry-run", is_flag=True, help="Validate only, change nothing.")
@with_client
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[tuple[str, str], ...],
    if_not_exists: bool,
    dry_run: bool,
    client: ClusterClient,
    output: Output,
) -> None:
    """Create topics."""
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=name,
                num_partitions=partitions or BROKER_DEFAULT,
                replication_factor=replication_factor or BROKER_DEFAULT,
                configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs],
            )
            for name in names
        ],
        timeout_ms=int(client.timeout_s * 1000),
        validate_only=dry_run,
    )
    results = client.ask(request, again=_is_leaderless).topics
    made, refusals, existing = _by_success(
        client, results, ErrorCode.TOPIC_ALREADY_EXISTS, is_ignored=if_not_exists
    )
    verb = "Would create" if dry_run else "Created"
    if made or not refusals:
        output.done(
            f"{verb} {', '.join(made)}" if made else "All of them exist already",
            {"created": made, "existing": existing, "dry_run": dry_run},
        )
    raise_refusals(refusals)


@topic.command(short_help="Show partitions, replicas, offsets and settings.")
@click.argument("names", nargs=-1, required=True, shell_complete=complete_topic, metavar="NAME...")
@with_client
def describe(names: tuple[str, ...], client: ClusterClient, output: Output) -> None:
    """Show partitions, replicas, offsets and the settings that differ from the default."""
    described = client.metadata(names).topics
    refusals = {
        (name := topic.name or ""): refusal_text(client, TOPIC, name, topic)
        for topic in described
        if topic.error_code
    }
    found = {topic.name: topic for topic in described if topic.name and not topic.error_code}
    partition_ids = [
        (name, partition.partition_index)
        for name, topic in found.items()
        for partition in topic.partitions
    ]
    starts = offsets.known_offsets(client, partition_ids, offsets.EARLIEST)
    ends = offsets.known_offsets(client, partition_ids, offsets.LATEST)
    own_configs = configs_of.own_configs(client, configs_of.TOPIC, list(found))
    documents: list[Row] = []
    for name, topic in found.items():
        partitions: list[Row] = [
            {
                "partition": (number := partition.partition_index),
                "leader": known(partition.leader_id),
                "replicas": list(partition.replica_nodes),
                "isr": list(partition.isr_nodes),
                "start_offset": (start := starts[name, number]),
                "end_offset": (end := ends[name, number]),
                "records": None if start is None or end is None else end - start,
            }
            for partition in sorted(topic.partitions, key=lambda each: each.partition_index)
        ]
        documents.append(
            {
                "topic": name,
                "topic_id": uuid_to_text(topic.topic_id),
                "internal": topic.is_internal,
                "configs": own_configs.get(name, {}),
                "partitions": partitions,
            }
        )
    if output.is_json:
        output.document(documents)
    for document in documents if not output.is_json else []:
        table = document["partitions"]
        assert isinstance(table, list)
        heading = {name: value for name, value in document.items() if name != "partitions"}
        output.facts({**heading, "partitions": len(table)})
        click.echo()
        output.rows(table)
    raise_refusals(refusals)


@topic.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_topic, metavar="NAME...")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--if-exists", is_flag=True, help="A missing topic is not an error.")
@with_client
def delete(
    names: tuple[str, ...],
    yes: bool,
    if_exists: bool,
    client: ClusterClient,
    output: Output,
) -> None:
    """Delete topics and everything in them."""
    client.connect()
    if not yes:
        client.confirm(f"Delete {', '.join(names)} and all their records?")
    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name) for name in names],
        timeout_ms=int(client.timeout_s * 1000),
    )
    results = client.ask(request).responses
    deleted, refusals, _ = _by_success(
        client, results, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, is_ignored=if_exists
    )
    if deleted or not refusals:
        output.done(
            f"Deleted {', '.join(deleted)}" if deleted else "None of them exists",
            {"deleted": deleted},
        )
    raise_refusals(refusals)


@topic.command()
@click.argument("name", shell_complete=complete_topic)
@click.option(
    "--partitions", "-p", type=click.IntRange(min=1), required=True, help="The new total."
)
@click.option("--dry-run", is_flag=True, help="Validate only, change nothing.")
@with_client
def alter(name: str, partitions: int, dry_run: bool, client: ClusterClient, output: Output) -> None:
    """Add partitions to a topic.

    Records with a key go to other partitions afterwards. Settings are changed by
    `odradek config set topic NAME KEY=VALUE`.
    """
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=name, count=partitions, assignments=None)],
        timeout_ms=int(client.timeout_s * 1000),
        validate_only=dry_run,
    )
    [result] = client.ask(request).results
    raise_refusal(client, TOPIC, name, result)
    verb = "would have" if dry_run else "has"
    output.done(
        f"{name} {verb} {partitions} partitions",
        {"topic": name, "partitions": partitions, "dry_run": dry_run},
    )


@topic.command("offsets", short_help="Show start and end offsets, and those at a time.")
@click.argument("selections", nargs=-1, required=True, type=topic_selection, metavar="TOPIC[:P]...")
@click.option(
    "--at",
    "moment",
    type=moment,
    metavar="TIME",
    help="Also show the first offset at or after this time.",
)
@with_client
def show_offsets(
    selections: tuple[TopicSelection, ...],
    moment: int | None,
    client: ClusterClient,
    output: Output,
) -> None:
    """Show start and end offset of each partition, and the offset at a time."""
    partition_ids = selected_partitions(client, selections)
    starts = offsets.list_offsets(client, partition_ids, offsets.EARLIEST)
    ends = offsets.list_offsets(client, partition_ids, offsets.LATEST)
    found = {} if moment is None else offsets.list_offsets(client, partition_ids, moment)
    rows: list[Row] = []
    for partition_id in partition_ids:
        row: dict[str, Json] = {
            "topic": partition_id[0],
            "partition": partition_id[1],
            "start_offset": starts[partition_id],
            "end_offset": ends[partition_id],
            "records": ends[partition_id] - starts[partition_id],
        }
        if moment is not None:
            row["offset_at_time"] = known(found[partition_id])
        rows.append(row)
    output.rows(rows)


@topic.command()
@click.argument("selections", nargs=-1, required=True, type=topic_selection, metavar="TOPIC[:P]...")
@click.option("--before", type=click.IntRange(min=0), help="First offset to keep.  [default: end]")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@with_client
def trim(
    selections: tuple[TopicSelection, ...],
    before: int | None,
    yes: bool,
    client: ClusterClient,
    output: Output,
) -> None:
    """Delete the records below an offset, in all or some partitions."""
    partition_ids = selected_partitions(client, selections)
    if not yes:
        count = len(partition_ids)
        client.confirm(f"Delete records in {count} partitions?")
    ends = offsets.list_offsets(client, partition_ids, offsets.LATEST) if before is None else {}
    results: dict[offsets.PartitionId, DeleteRecordsPartitionResult] = {}
    for leader, topics in offsets.by_leader(client, partition_ids).items():
        request = DeleteRecordsRequest(
            topics=[
                TopicOffsets(
                    name=topic.name,
                    partitions=[
                        PartitionOffset(
                            partition_index=index,
                            offset=ends[topic.name, index] if before is None else before,
                        )
                        for index in topic.partitions
                    ],
                )
                for topic in topics
            ],
            timeout_ms=int(client.timeout_s * 1000),
        )
        results |= offsets.by_id(client.ask_broker(leader, request).topics)
    rows: list[Row] = [
        {"topic": name, "partition": index, "start_offset": result.low_watermark}
        for (name, index), result in sorted(results.items())
        if not result.error_code
    ]
    output.rows(rows)
    raise_refusals(
        {
            f"{name}-{index}": error_text(result)
            for (name, index), result in results.items()
            if result.error_code
        }
    )


def selected_partitions(
    client: ClusterClient, selections: Iterable[TopicSelection]
) -> list[offsets.PartitionId]:
    """The partitions that `selections` name; ClickException for a topic or partition that does not
    exist."""
    partition_ids: list[offsets.PartitionId] = []
    for selection in selections:
        known = offsets.partitions_of(client, [selection.topic])
        missing = selection.partitions - {number for _, number in known}
        if missing:
            raise no_such_partition(selection.topic, missing, len(known))
        partition_ids.extend(each for each in known if selection.has(*each))
    return partition_ids


def create_topic(client: ClusterClient, name: str, partitions: int) -> None:
    """Create a topic with the broker's defaults; ClickException if that fails."""
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=BROKER_DEFAULT)
    [result] = client.ask(CreateTopicsRequest(topics=[topic])).topics
    raise_on_error(result, name)


def delete_topic(client: ClusterClient, name: str) -> None:
    """Delete a topic; errors are ignored."""
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=30_000)
    client.ask(request)


def _is_leaderless(response: CreateTopicsResponse) -> bool:
    return any(topic.error_code == ErrorCode.NOT_CONTROLLER for topic in response.topics)


def _by_success(
    client: ClusterClient,
    results: Iterable[CreatableTopicResult | DeletableTopicResult],
    expected: ErrorCode,
    *,
    is_ignored: bool,
) -> tuple[list[str], dict[str, str], list[str]]:
    """The topics that succeeded, the refusals, and the topics with the `expected` error, which is
    no refusal if it `is_ignored`."""
    done = [result.name or "" for result in results if not result.error_code]
    others = [result.name or "" for result in results if result.error_code == expected]
    refusals = {
        (name := result.name or ""): refusal_text(client, TOPIC, name, result)
        for result in results
        if result.error_code and not (is_ignored and result.error_code == expected)
    }
    return done, refusals, others
