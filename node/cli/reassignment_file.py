"""Assignments of replicas in the JSON of `kafka-reassign-partitions.sh`: a pure reader and writer.

A plan is `{"version": 1, "partitions": [{"topic", "partition", "replicas", "log_dirs"}, ...]}`. The
entries of `log_dirs`, which may be absent, belong to those of `replicas`; `any` leaves the choice
to the broker. Unknown fields are ignored, as by Kafka's tool.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final

import msgspec

from odradek.node.cli.output import Json

VERSION: Final = 1
ANY: Final = "any"
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class InvalidAssignmentError(ValueError):
    """The message says what is wrong, and at which place of the document."""


class WantedReplicas(msgspec.Struct, frozen=True, kw_only=True):
    """The replicas that a partition shall have, the preferred leader first, and the log directories
    of those nodes that shall have it in a certain one."""

    topic: str
    number: int
    replicas: tuple[int, ...]
    log_dirs: Mapping[int, str] = msgspec.field(default_factory=dict)


class _PartitionEntry(msgspec.Struct):
    topic: str
    partition: _Number
    replicas: list[_Number]
    log_dirs: list[str] | None = None


class _Document(msgspec.Struct):
    partitions: list[_PartitionEntry]
    version: int = VERSION


def parse_assignment(text: bytes) -> Sequence[WantedReplicas]:
    """The partitions of a plan, in its order. Raises InvalidAssignmentError."""
    try:
        document = msgspec.convert(json.loads(text), _Document)
    except msgspec.ValidationError as error:
        raise InvalidAssignmentError(str(error)) from error
    except (ValueError, RecursionError) as error:
        raise InvalidAssignmentError(f"it is no JSON: {error}") from error
    if document.version != VERSION:
        raise InvalidAssignmentError(f"its version is {document.version}, and not {VERSION}")
    if not document.partitions:
        raise InvalidAssignmentError("its list of partitions is empty")
    counts = Counter((entry.topic, entry.partition) for entry in document.partitions)
    for (topic, number), count in counts.items():
        if count > 1:
            raise InvalidAssignmentError(f"it has {topic}-{number} {count} times")
    return [_wanted(entry, at) for at, entry in enumerate(document.partitions)]


def duplicates(replicas: Iterable[int]) -> Sequence[int]:
    """The nodes that a list of replicas has more than once."""
    return [node for node, count in Counter(replicas).items() if count > 1]


def assignment_document(assignments: Mapping[tuple[str, int], Sequence[int]]) -> Json:
    """The replicas of partitions as a plan, which leads back to them."""
    return {
        "version": VERSION,
        "partitions": [
            {
                "topic": topic,
                "partition": number,
                "replicas": list(replicas),
                "log_dirs": [ANY] * len(replicas),
            }
            for (topic, number), replicas in sorted(assignments.items())
        ],
    }


def _wanted(entry: _PartitionEntry, at: int) -> WantedReplicas:
    place = f"at `$.partitions[{at}]` ({entry.topic}-{entry.partition})"
    if not entry.replicas:
        raise InvalidAssignmentError(f"there are no replicas {place}")
    if repeated := duplicates(entry.replicas):
        raise InvalidAssignmentError(f"node {repeated[0]} is there more than once {place}")
    paths = entry.log_dirs
    if paths is not None and len(paths) != len(entry.replicas):
        raise InvalidAssignmentError(
            f"there are {len(paths)} log_dirs for {len(entry.replicas)} replicas {place}"
        )
    return WantedReplicas(
        topic=entry.topic,
        number=entry.partition,
        replicas=tuple(entry.replicas),
        log_dirs={
            node: path
            for node, path in zip(entry.replicas, paths or (), strict=bool(paths))
            if path != ANY
        },
    )
