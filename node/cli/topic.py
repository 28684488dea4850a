"""`odradek topic`: create, look at, change and delete topics of any Kafka cluster."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING

import click

from odradek.node.cli import offsets
from odradek.node.cli.completion import complete_topic
from odradek.node.cli.connection import (
    ClusterConnection,
    collect_results,
    raise_refusals,
    single_result,
    with_connection,
)
from odradek.node.cli.output import Json, Output, Row, with_output
from odradek.node.cli.parameters import TopicSelection, moment, pair, topic_selection
from odradek.node.cli.topic_explain import explain

if TYPE_CHECKING:
    # confluent-kafka must not be imported before a command needs it.
    from confluent_kafka.admin import AdminClient, TopicDescription

BROKER_DEFAULT = -1  # CreateTopics: the broker's num.partitions, default.replication.factor
_URL_SAFE = str.maketrans("+/", "-_")


@click.group()
def topic() -> None:
    """Create, describe, change and delete topics."""


topic.add_command(explain)


@topic.command("list")
@click.argument("pattern", default="*")
@click.option("--internal", is_flag=True, help="Show topics that start with two underscores too.")
@with_connection
@with_output
def list_topics(
    pattern: str, internal: bool, connection: ClusterConnection, output: Output
) -> None:
    """List topics, all or those that match a PATTERN such as 'orders-*'."""
    metadata = connection.admin().list_topics(timeout=connection.timeout_s)
    rows: list[Row] = [
        {
            "topic": name,
            "partitions": len(found.partitions),
            "replication_factor": max(
                (len(p.replicas) for p in found.partitions.values()), default=0
            ),
            "under_replicated": sum(
                len(p.isrs) < len(p.replicas) for p in found.partitions.values()
            ),
        }
        for name, found in sorted(metadata.topics.items())
        if fnmatch.fnmatchcase(name, pattern) and (internal or not name.startswith("__"))
    ]
    output.rows(
        rows,
        ["topic", "partitions", "replication_factor", "under_replicated"],
        empty="No topics. Create one: odradek topic create NAME",
    )


@topic.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--partitions", "-p", type=click.IntRange(min=1), help="Default: the broker's.")
@click.option(
    "--replication-factor", "-r", type=click.IntRange(min=1), help="Default: the broker's."
)
@click.option("--config", "-c", "configs", type=pair, multiple=True, metavar="KEY=VALUE")
@click.option("--if-not-exists", is_flag=True, help="An existing topic is not an error.")
@click.option("--dry-run", is_flag=True, help="Let the broker check the request, change nothing.")
@with_connection
@with_output
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[tuple[str, str], ...],
    if_not_exists: bool,
    dry_run: bool,
    connection: ClusterConnection,
    output: Output,
) -> None:
    """Create topics."""
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import NewTopic

    wanted = [
        NewTopic(
            name,
            num_partitions=partitions or BROKER_DEFAULT,
            replication_factor=replication_factor or BROKER_DEFAULT,
            config=dict(configs),
        )
        for name in names
    ]
    futures = connection.admin().create_topics(
        wanted,
        operation_timeout=connection.timeout_s,
        request_timeout=connection.timeout_s,
        validate_only=dry_run,
    )
    answers, refusals = collect_results(futures)
    made = list(answers)
    existing = [name for name, e in refusals.items() if e.code() == KafkaError.TOPIC_ALREADY_EXISTS]
    for name in existing if if_not_exists else []:
        del refusals[name]
    verb = "Would create" if dry_run else "Created"
    if made or not refusals:
        output.done(
            f"{verb} {', '.join(made)}" if made else "All of them exist already",
            {"created": made, "existing": existing, "dry_run": dry_run},
        )
    raise_refusals(refusals)


@topic.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_topic, metavar="NAME...")
@with_connection
@with_output
def describe(names: tuple[str, ...], connection: ClusterConnection, output: Output) -> None:
    """Show partitions, replicas, offsets and the settings that differ from the default."""
    from confluent_kafka import TopicCollection

    admin = connection.admin()
    answers, refusals = collect_results(
        admin.describe_topics(TopicCollection(list(names)), request_timeout=connection.timeout_s)
    )
    described: dict[str, TopicDescription] = answers
    partition_ids = [
        (name, partition.id) for name, found in described.items() for partition in found.partitions
    ]
    starts = offsets.known_starts(admin, partition_ids)
    ends = offsets.known_ends(admin, partition_ids)
    documents: list[Row] = []
    for name, found in described.items():
        partitions: list[Row] = [
            {
                "partition": partition.id,
                "leader": partition.leader.id if partition.leader else None,
                "replicas": [node.id for node in partition.replicas],
                "isr": [node.id for node in partition.isr],
                "start_offset": (start := starts[name, partition.id]),
                "end_offset": (end := ends[name, partition.id]),
                "records": None if start is None or end is None else end - start,
            }
            for partition in found.partitions
        ]
        documents.append(
            {
                "topic": name,
                # librdkafka writes the other base64; Kafka's own tools, and ours, the url-safe one.
                "topic_id": str(found.topic_id).translate(_URL_SAFE),
                "internal": found.is_internal,
                "configs": _own_configs(admin, name),
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
        output.rows(table, list(table[0]) if table else [])
    raise_refusals(refusals)


@topic.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_topic, metavar="NAME...")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--if-exists", is_flag=True, help="A missing topic is not an error.")
@with_connection
@with_output
def delete(
    names: tuple[str, ...],
    yes: bool,
    if_exists: bool,
    connection: ClusterConnection,
    output: Output,
) -> None:
    """Delete topics and everything in them."""
    from confluent_kafka import KafkaError

    admin = connection.admin()
    if not yes:
        click.confirm(f"Delete {', '.join(names)} and all their records?", abort=True, err=True)
    futures = admin.delete_topics(
        list(names),
        operation_timeout=connection.timeout_s,
        request_timeout=connection.timeout_s,
    )
    answers, refusals = collect_results(futures)
    deleted = list(answers)
    missing = [name for name, e in refusals.items() if e.code() == KafkaError.UNKNOWN_TOPIC_OR_PART]
    for name in missing if if_exists else []:
        del refusals[name]
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
@click.option("--dry-run", is_flag=True, help="Let the broker check the request, change nothing.")
@with_connection
@with_output
def alter(
    name: str, partitions: int, dry_run: bool, connection: ClusterConnection, output: Output
) -> None:
    """Add partitions to a topic.

    Records with a key go to other partitions afterwards. Settings are changed by
    `odradek config set topic NAME KEY=VALUE`.
    """
    from confluent_kafka.admin import NewPartitions

    futures = connection.admin().create_partitions(
        [NewPartitions(name, partitions)],
        operation_timeout=connection.timeout_s,
        request_timeout=connection.timeout_s,
        validate_only=dry_run,
    )
    single_result(futures, name)
    verb = "would have" if dry_run else "has"
    output.done(
        f"{name} {verb} {partitions} partitions",
        {"topic": name, "partitions": partitions, "dry_run": dry_run},
    )


@topic.command("offsets")
@click.argument("selections", nargs=-1, required=True, type=topic_selection, metavar="TOPIC[:P]...")
@click.option("--at", "moment", type=moment, help="The first offset at or after this time too.")
@with_connection
@with_output
def show_offsets(
    selections: tuple[TopicSelection, ...],
    moment: int | None,
    connection: ClusterConnection,
    output: Output,
) -> None:
    """Show first and next offset of each partition, and what is at a time."""
    admin = connection.admin()
    partition_ids = selected_partitions(admin, selections, connection)
    starts = offsets.earliest_offsets(admin, partition_ids)
    ends = offsets.latest_offsets(admin, partition_ids)
    found = offsets.offsets_at(admin, partition_ids, moment) if moment is not None else {}
    columns = ["topic", "partition", "start_offset", "end_offset", "records"]
    if moment is not None:
        columns.append("offset_at_time")
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
            row["offset_at_time"] = found[partition_id] if found[partition_id] >= 0 else None
        rows.append(row)
    output.rows(rows, columns)


@topic.command()
@click.argument("selections", nargs=-1, required=True, type=topic_selection, metavar="TOPIC[:P]...")
@click.option("--before", type=click.IntRange(min=0), help="First offset to keep.  [default: end]")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@with_connection
@with_output
def trim(
    selections: tuple[TopicSelection, ...],
    before: int | None,
    yes: bool,
    connection: ClusterConnection,
    output: Output,
) -> None:
    """Delete the records below an offset, in all or some partitions."""
    from confluent_kafka import TopicPartition

    admin = connection.admin()
    partition_ids = selected_partitions(admin, selections, connection)
    ends = offsets.latest_offsets(admin, partition_ids)
    if not yes:
        click.confirm(f"Delete records in {len(partition_ids)} partitions?", abort=True, err=True)
    futures = admin.delete_records(
        [
            TopicPartition(name, number, ends[name, number] if before is None else before)
            for name, number in partition_ids
        ],
        request_timeout=connection.timeout_s,
        operation_timeout=connection.timeout_s,
    )
    answers, refusals = collect_results(futures)
    rows: list[Row] = [
        {
            "topic": partition_id.topic,
            "partition": partition_id.partition,
            "start_offset": deleted.low_watermark,
        }
        for partition_id, deleted in answers.items()
    ]
    output.rows(rows, ["topic", "partition", "start_offset"])
    raise_refusals(
        {
            f"{partition_id.topic}-{partition_id.partition}": e
            for partition_id, e in refusals.items()
        }
    )


def selected_partitions(
    admin: AdminClient, selections: tuple[TopicSelection, ...], connection: ClusterConnection
) -> list[offsets.PartitionId]:
    """The partitions that `selections` name; an error for a topic or partition that is not."""
    metadata = admin.list_topics(timeout=connection.timeout_s)
    partition_ids: list[offsets.PartitionId] = []
    for selection in selections:
        known = offsets.partitions_of(metadata, [selection.topic])
        missing = selection.partitions - {number for _, number in known}
        if missing:
            raise click.ClickException(
                f"topic {selection.topic!r} has partitions 0 to {len(known) - 1}, "
                f"not {', '.join(map(str, sorted(missing)))}"
            )
        partition_ids.extend(partition_id for partition_id in known if selection.has(*partition_id))
    return partition_ids


def _own_configs(admin: AdminClient, name: str) -> dict[str, str | None]:
    from confluent_kafka.admin import ConfigResource, ConfigSource

    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    answers, _ = collect_results(admin.describe_configs([resource]))
    # Describing a topic does not need the right to read its settings: then there are none.
    return {
        key: entry.value
        for entries in answers.values()
        for key, entry in sorted(entries.items())
        if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    }
