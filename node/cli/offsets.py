"""Offsets of many partitions in one question, for the commands that compare them.

Keys are (topic, partition). Ends are exclusive: an end offset is the one the next record gets.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import click

from odradek.node.cli.client import reason, settle

if TYPE_CHECKING:
    # confluent-kafka must not be imported before a command needs it.
    from confluent_kafka.admin import AdminClient, ClusterMetadata, OffsetSpec

Place: TypeAlias = tuple[str, int]

# How long a partition may be without a leader, as a new one is for a moment, and how often to ask.
LEADERLESS_S = 10.0
MOVING_S = 1.0
"""The same for who can do without."""
RETRY_S = 0.05


def earliest_offsets(admin: AdminClient, places: Iterable[Place]) -> dict[Place, int]:
    """Log start offset of each partition."""
    from confluent_kafka.admin import OffsetSpec

    return _ask(admin, dict.fromkeys(places, OffsetSpec.earliest()))


def latest_offsets(
    admin: AdminClient, places: Iterable[Place], *, is_committed: bool = False
) -> dict[Place, int]:
    """High watermark of each partition; with `is_committed`, the last stable offset."""
    from confluent_kafka.admin import OffsetSpec

    return _ask(admin, dict.fromkeys(places, OffsetSpec.latest()), is_committed=is_committed)


def known_starts(admin: AdminClient, places: Iterable[Place]) -> dict[Place, int | None]:
    """Log start offset of each partition; None where no leader can tell it."""
    from confluent_kafka.admin import OffsetSpec

    return _ask_known(admin, dict.fromkeys(places, OffsetSpec.earliest()))


def known_ends(admin: AdminClient, places: Iterable[Place]) -> dict[Place, int | None]:
    """High watermark of each partition; None where no leader can tell it."""
    from confluent_kafka.admin import OffsetSpec

    return _ask_known(admin, dict.fromkeys(places, OffsetSpec.latest()))


def _ask_known(admin: AdminClient, specs: Mapping[Place, OffsetSpec]) -> dict[Place, int | None]:
    found = _ask(admin, specs, patience_s=MOVING_S, is_whole=False)
    return {place: found.get(place) for place in specs}


def offsets_at(admin: AdminClient, places: Iterable[Place], timestamp_ms: int) -> dict[Place, int]:
    """First offset whose timestamp is `timestamp_ms` or later; -1 where there is none."""
    from confluent_kafka.admin import OffsetSpec

    return _ask(admin, dict.fromkeys(places, OffsetSpec.for_timestamp(timestamp_ms)))


def _ask(
    admin: AdminClient,
    specs: Mapping[Place, OffsetSpec],
    *,
    is_committed: bool = False,
    patience_s: float = LEADERLESS_S,
    is_whole: bool = True,
) -> dict[Place, int]:
    """Partitions that have no leader after `patience_s` are an error, or left out if the answer
    need not be `is_whole`."""
    from confluent_kafka import IsolationLevel, KafkaError, TopicPartition

    if not specs:
        return {}
    leaderless = {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        # Of those that are asked for none has a leader.
        KafkaError._NOENT,
    }
    isolation = IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED
    offsets: dict[Place, int] = {}
    deadline = time.monotonic() + patience_s
    while True:
        wanted = {
            TopicPartition(*place): spec for place, spec in specs.items() if place not in offsets
        }
        answers, refusals = settle(admin.list_offsets(wanted, isolation_level=isolation))
        for place, answer in answers.items():
            offsets[place.topic, place.partition] = answer.offset
        for place, error in refusals.items():
            is_late = time.monotonic() > deadline
            if error.code() not in leaderless or (is_late and is_whole):
                raise click.ClickException(
                    f"offsets of {place.topic}-{place.partition}: {reason(error)}"
                )
        if not refusals or time.monotonic() > deadline:
            return offsets
        time.sleep(RETRY_S)


def partitions_of(metadata: ClusterMetadata, topics: Iterable[str]) -> list[Place]:
    """Every partition of `topics`, in order; an error that names the first unknown topic."""
    places: list[Place] = []
    for topic in topics:
        described = metadata.topics.get(topic)
        if described is None or described.error is not None:
            why = reason(described.error) if described is not None else "no such topic"
            raise click.ClickException(f"topic {topic!r}: {why}")
        places.extend((topic, number) for number in sorted(described.partitions))
    return places
