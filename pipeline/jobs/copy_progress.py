"""How far a copy into a topic is: the source's next offset, as metadata of a committed offset.

It is committed in the transaction that holds the copied records, for the group `pipe.<name>` and
the partition of the target. So a copy that is killed at any moment goes on with the next record,
and what it had sent without committing is aborted. The offset itself is the target's end, which is
what Kafka's tools expect of a group.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.group_offsets import committed_with_metadata
from odradek.pipeline.kafka_types import PartitionName

_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPosition:
    """Where a copy of one partition goes on."""

    source: str
    """What is copied, in words: another source must not go on from here."""
    topic_id: str
    """Of the source's topic; empty if it has none."""
    next_offset: int
    """Of the source: everything below it is in the target."""
    target_end: int
    """After the last copied record in the target."""

    def text(self) -> str:
        """As the metadata of an offset."""
        found = {
            "odradek.copy": _VERSION,
            "source": self.source,
            "topic_id": self.topic_id,
            "next": self.next_offset,
        }
        return json.dumps(found, separators=(",", ":"))


def read_positions(
    properties: Mapping[str, str],
    group: str,
    partitions: Collection[PartitionName],
    *,
    source: str,
    timeout_s: float,
) -> dict[PartitionName, CopyPosition]:
    """The positions of these partitions of the target; those that were never copied are left out.

    PipelineError if the group's offsets are of another source, or not of a copy.
    """
    committed = committed_with_metadata(properties, group, partitions, timeout_s=timeout_s)
    found = {}
    for name, each in committed.items():
        position = _position(each.metadata, each.offset)
        if position is None or position.source != source:
            owner = "no copy" if position is None else position.source
            raise PipelineError(
                f"group {group} has an offset of {owner} for {name}, and this is a copy of"
                f" {source}: choose another name"
            )
        found[name] = position
    return found


def _position(text: str, offset: int) -> CopyPosition | None:
    try:
        fields = json.loads(text)
        if fields["odradek.copy"] != _VERSION:
            return None
        return CopyPosition(
            source=str(fields["source"]),
            topic_id=str(fields["topic_id"]),
            next_offset=int(fields["next"]),
            target_end=offset,
        )
    except (ValueError, TypeError, KeyError):
        return None
