"""`odradek log`: what is in the files of a store, for the curious and for the worried.

Reads without the broker and beside it: a segment is opened read-only, and nothing is locked. It
shows what is there, also what a client would not be given (records above the high watermark).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from odradek.node.cli.output import Json, Output, with_output
from odradek.node.cli.parameters import TopicSelection, moment_text, topic_selection
from odradek.node.cli.record_text import bytes_to_json, printable

if TYPE_CHECKING:
    # The stores' modules are imported when a file is opened, not for `odradek --help`.
    from odradek.protocol.records import BatchHeader
    from odradek.storage.segment import StoredBatch

SEGMENT_NAME = re.compile(r"segment-(\d+)\.mdb")
VALUE_SHOWN_MAX = 80


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """The partition that a store-local number stands for."""

    topic: str
    partition: int


@click.group()
def log() -> None:
    """Look into the files of a node."""


@log.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path), metavar="SEGMENT|STORE")
@click.option("--topic", "-t", "selection", type=topic_selection, help="Only this one.")
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
        owners = _owners(directory)
        count = 0
        for segment_id in segment_ids:
            segment = Segment.open(directory, segment_id)
            for stored in segment.iterate():
                owner = owners.get(stored.number)
                if not _is_wanted(stored, owner, selection, offset):
                    continue
                if max_batches is not None and count >= max_batches:
                    return
                count += 1
                _print(segment_id, stored, owner, show_records, output)
    except StorageError as error:
        raise click.ClickException(str(error)) from error
    if not count:
        output.hint("No such batches.")


def _segments(path: Path) -> tuple[Path, list[int]]:
    """The store's folder and the segments of it to show."""
    from odradek.storage.layout import segment_ids

    if path.is_dir():
        found = segment_ids(path)
        if not found:
            raise click.ClickException(f"{path} has no segments: name <data>/stores/<number>")
        return path, found
    named = SEGMENT_NAME.fullmatch(path.name)
    if named is None:
        raise click.ClickException(f"{path} is no segment: they are called segment-<number>.mdb")
    return path.parent, [int(named[1])]


def _owners(directory: Path) -> Mapping[int, StoredPartition]:
    """What the store's catalog says about partition numbers; nothing if it has none."""
    from odradek.storage.catalog import CatalogFile
    from odradek.storage.layout import CATALOG_NAME

    if not (directory / CATALOG_NAME).exists():
        return {}
    catalog = CatalogFile(directory)
    return {
        row.number: StoredPartition(row.topic_name, row.partition)
        for row in catalog.partition_rows()
    }


def _is_wanted(
    stored: StoredBatch,
    owner: StoredPartition | None,
    selection: TopicSelection | None,
    offset: int,
) -> bool:
    from odradek.protocol.records import read_header

    if selection is not None and (owner is None or not selection.has(owner.topic, owner.partition)):
        return False
    return not offset or stored.base_offset + read_header(stored.batch).last_offset_delta >= offset


def _print(
    segment_id: int,
    stored: StoredBatch,
    owner: StoredPartition | None,
    show_records: bool,
    output: Output,
) -> None:
    from odradek.protocol.records import batch_size, is_crc_valid, read_header

    header = read_header(stored.batch)
    is_whole = batch_size(stored.batch) == len(stored.batch) and is_crc_valid(
        stored.batch, 0, len(stored.batch)
    )
    if output.is_json:
        document = _batch_facts(segment_id, stored, owner, header, is_whole)
        if show_records:
            document["records"] = list(_record_facts(stored, header, is_whole))
        output.json_line(document)
        return
    place = f"{owner.topic}-{owner.partition}" if owner else f"number {stored.number}"
    last = stored.base_offset + header.last_offset_delta
    marks = [word for word, is_so in _marks(header).items() if is_so]
    words = [
        f"{header.record_count} records",
        f"{len(stored.batch)} bytes",
        _codec(header),
        f"epoch {header.partition_leader_epoch}",
        moment_text(header.max_timestamp) or "no timestamp",
        *([f"producer {_producer(header)}"] if header.producer_id >= 0 else []),
        *marks,
        *([] if is_whole else [click.style("CRC WRONG", fg="red", bold=True)]),
    ]
    offsets = click.style(f"{place} [{stored.base_offset}, {last + 1})", bold=True)
    click.echo(f"{offsets}  {', '.join(words)}")
    for record in _record_facts(stored, header, is_whole) if show_records else ():
        key, value = record["key"], record["value"]
        click.echo(f"  {record['offset']}  {record['timestamp']}  {key}  {value}")


def _batch_facts(
    segment_id: int,
    stored: StoredBatch,
    owner: StoredPartition | None,
    header: BatchHeader,
    is_whole: bool,
) -> dict[str, Json]:
    return {
        "segment": segment_id,
        "number": stored.number,
        "topic": owner.topic if owner else None,
        "partition": owner.partition if owner else None,
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
        **_marks(header),
        "crc_valid": is_whole,
    }


def _record_facts(
    stored: StoredBatch, header: BatchHeader, is_whole: bool
) -> Iterable[dict[str, Json]]:
    from odradek.protocol.records import iter_records

    if not is_whole:
        return  # what is in a spoiled batch is anybody's guess
    for record in iter_records(stored.batch, header):
        key = None if record.key is None else bytes(record.key)
        value = None if record.value is None else bytes(record.value)
        yield {
            "offset": record.offset,
            "timestamp": moment_text(record.timestamp),
            "key": _short(key),
            "value": _short(value),
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


def _marks(header: BatchHeader) -> dict[str, bool]:
    return {
        "transactional": header.is_transactional,
        "control": header.is_control,
        "log_append_time": header.is_log_append_time,
    }


def _codec(header: BatchHeader) -> str:
    from odradek.protocol.records import compression_of

    return compression_of(header.attributes).name.lower()


def _producer(header: BatchHeader) -> str:
    return f"{header.producer_id}/{header.producer_epoch} at {header.base_sequence}"
