"""Keeps the metadata image of a process up to date with the controller's messages.

Entries are applied in order and once. Entries that were applied before are skipped. After a gap the
caller subscribes again from its offset. Called by routers and workers.
"""

from itertools import chain

from odradek.cluster.metadata.delta import image_after
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.records import decode_records
from odradek.node.bus.messages import MetadataRecords, MetadataSnapshot


def apply_metadata(
    image: MetadataImage, message: MetadataRecords | MetadataSnapshot
) -> MetadataImage | None:
    """The image after `message`: the same one if there is nothing new, None if entries before it
    are missing."""
    if isinstance(message, MetadataSnapshot):
        return _replay(MetadataImage.empty(), message.records, message.offset)
    known = image.offset - message.base_offset
    if known < 0:
        return None
    if known >= len(message.records):
        return image
    end = message.base_offset + len(message.records)
    return _replay(image, message.records[known:], end)


def _replay(image: MetadataImage, entries: tuple[bytes, ...], offset: int) -> MetadataImage:
    return image_after(image, chain.from_iterable(map(decode_records, entries)), offset)
