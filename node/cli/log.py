"""`odradek log`: the content of the files of a store.

Works while the broker runs and while it does not: segments are opened read-only, and nothing is
locked. It shows all batches, also those above the high watermark, which clients do not get.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from odradek.node.cli.output import Json, Output, with_output
from odradek.node.cli.parameters import TopicSelection, moment_text, topic_selection
from odradek.node.cli.record_text import bytes_to_json, printable

if TYPE_CHECKING:
    # These modules are imported when a file is opened, not for `odradek --help`.
    from odradek.node.cli.offsets import PartitionId
    from odradek.protocol.records import BatchHeader
    from odradek.storage.segment import StoredBatch

SEGMENT_NAME = re.compile(r"segment-(\d+)\.mdb")
VALUE_SHOWN_MAX = 80


@click.group()
def log() -> None:
    """Look into the files of a node."""


@log.command(short_help="Print the batches of a segment file or a store.")
@click.argument("path", type=click.Path(exists=True, path_type=Path), metavar="SEGMENT|STORE")
@click.option(
    "--topic",
    "-t",
    "selection",
    type=topic_selection,
    metavar="TOPIC[:P,...]",
    help="Only this one.",
)
@click.option("--offset", type=click.IntRange(min=0), default=0, help="Batches from here on.")
@click.option("--max-batches", "-n", type=click.IntRange(min=1), help="Stop after this many.")
@click.option("--records", "-r", "show_records", is_flag=True, help="Show the records as well.")
@with_output
def dump(
    path: Path,
    selection: TopicSelection | None,
    offset: int,
    max_batches: int | None,
    show_records: bool,
    output: Output,
) -> None:
    """Print the record batches of a segment file, or of all segments of a store.

    \b
    odradek log dump data/stores/0
    odradek log dump data/stores/0/segment-00000001.mdb -t orders:0 --records
    """
    from odradek.storage.environment import StorageError
    from odradek.storage.segment import Segment

    directory, segment_ids = _segments(path)
    try:
        partitions = _partitions(directory)
        count = 0
        for segment_id in segment_ids:
            segment = Segment.open(directory, segment_id)
            for stored in segment.iterate():
                partition_id = partitions.get(stored.number)
                if not _is_selected(stored, partition_id, selection, offset):
                    continue
                if max_batches is not None and count >= max_batches:
                    return
                count += 1
                _print(segment_id, stored, partition_id, show_records, output)
    except StorageError as error:
        raise click.ClickException(str(error)) from error
    if not count:
        output.hint("No such batches.")


def _segments(path: Path) -> tuple[Path, list[int]]:
    """The folder of the store, and the segments to show."""
    from odradek.storage.layout import segment_ids

    if path.is_dir():
        found = segment_ids(path)
        if not found:
            raise click.ClickException(f"{path} has no segments: name <data>/stores/<number>")
        return path, found
    named = SEGMENT_NAME.fullmatch(path.name)
    if named is None:
        raise click.ClickException(f"{path} is not a segment: segments are segment-<number>.mdb")
    return path.parent, [int(named[1])]


def _partitions(directory: Path) -> Mapping[int, PartitionId]:
    """The partitions of the store by their numbers in it; none if it has no catalog."""
    from odradek.storage.catalog import CatalogFile
    from odradek.storage.layout import CATALOG_NAME

    if not (directory / CATALOG_NAME).exists():
        return {}
    rows = CatalogFile(directory).partition_rows()
    return {row.number: (row.topic_name, row.partition) for row in rows}


def _is_selected(
    stored: StoredBatch,
    partition_id: PartitionId | None,
    selection: TopicSelection | None,
    offset: int,
) -> bool:
    from odradek.protocol.records import read_header

    if selection is not None and (partition_id is None or not selection.has(*partition_id)):
        return False
    return not offset or stored.base_offset + read_header(stored.batch).last_offset_delta >= offset


def _print(
    segment_id: int,
    stored: StoredBatch,
    partition_id: PartitionId | None,
    show_records: bool,
    output: Output,
) -> None:
    from odradek.protocol.records import batch_size, is_crc_valid, read_header

    header = read_header(stored.batch)
    is_whole = batch_size(stored.batch) == len(stored.batch) and is_crc_valid(
        stored.batch, 0, len(stored.batch)
    )
    if output.is_json:
        document = _batch_facts(segment_id, stored, partition_id, header, is_whole)
        if show_records:
            document["records"] = list(_record_facts(stored, header, is_whole))
        output.json_line(document)
        return
    name = f"{partition_id[0]}-{partition_id[1]}" if partition_id else f"number {stored.number}"
    parts = [
        f"{header.record_count} records",
        f"{len(stored.batch)} bytes",
        _codec(header),
        f"epoch {header.partition_leader_epoch}",
        moment_text(header.max_timestamp) or "no timestamp",
    ]
    if header.producer_id >= 0:
        producer = f"{header.producer_id}/{header.producer_epoch}"
        parts.append(f"producer {producer} at {header.base_sequence}")
    parts += [name for name, is_set in _flags(header).items() if is_set]
    if not is_whole:
        parts.append(click.style("CRC WRONG", fg="red", bold=True))
    end = stored.base_offset + header.last_offset_delta + 1
    offsets = f"{name} [{stored.base_offset}, {end})"
    click.echo(f"{click.style(offsets, bold=True)}  {', '.join(parts)}")
    for record in _record_facts(stored, header, is_whole) if show_records else ():
        key, value = ("null" if record[each] is None else record[each] for each in ("key", "value"))
        click.echo(f"  {record['offset']}  {record['timestamp'] or '-'}  {key}  {value}")


def _batch_facts(
    segment_id: int,
    stored: StoredBatch,
    partition_id: PartitionId | None,
    header: BatchHeader,
    is_whole: bool,
) -> dict[str, Json]:
    topic, partition = partition_id or (None, None)
    return {
        "segment": segment_id,
        "number": stored.number,
        "topic": topic,
        "partition": partition,
        "base_offset": stored.base_offset,
        "end_offset": stored.base_offset + header.last_offset_delta + 1,
        "record_count": header.record_count,
        "bytes": len(stored.batch),
        "compression": _codec(header),
        "leader_epoch": header.partition_leader_epoch,
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        **_flags(header),
        "crc_valid": is_whole,
    }


def _record_facts(
    stored: StoredBatch, header: BatchHeader, is_whole: bool
) -> Iterable[dict[str, Json]]:
    from odradek.protocol.records import iter_records

    if not is_whole:
        return  # the records of a damaged batch cannot be trusted
    for record in iter_records(stored.batch, header):
        yield {
            "offset": record.offset,
            "timestamp": moment_text(record.timestamp),
            "key": _short(_bytes(record.key)),
            "value": _short(_bytes(record.value)),
            "headers": [
                {"key": str(name), **bytes_to_json("value", _bytes(text))}
                for name, text in record.headers
            ],
        }


def _bytes(value: bytes | memoryview | None) -> bytes | None:
    return None if value is None else bytes(value)


def _short(value: bytes | None) -> str | None:
    if value is None:
        return None
    text = printable(value[: VALUE_SHOWN_MAX + 1])
    return text if len(value) <= VALUE_SHOWN_MAX else f"{text[:VALUE_SHOWN_MAX]}..."


def _flags(header: BatchHeader) -> dict[str, bool]:
    return {
        "transactional": header.is_transactional,
        "control": header.is_control,
        "log_append_time": header.is_log_append_time,
    }


def _codec(header: BatchHeader) -> str:
    from odradek.protocol.records import compression_of

    return compression_of(header.attributes).name.lower()
