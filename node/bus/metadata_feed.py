"""How a process keeps its image in step with what the controller sends.

Entries are applied in order and once; what has been applied before is skipped, a gap is told so
that the caller asks again from where it stands. Used by routers and workers alike.
"""

from itertools import chain

from odradek.cluster.metadata.delta import image_after
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.records import decode_records
from odradek.node.bus.messages import MetadataRecords, MetadataSnapshot


def apply_metadata(
    image: MetadataImage, message: MetadataRecords | MetadataSnapshot
) -> MetadataImage | None:
    """The image after `message`; the same one when it brings nothing new, None when entries are
    missing."""
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
