"""Which requests are measured: of the frequent APIs one in sixteen of each client, by its
correlation id, which clients count up; of all others each one. Called by dispatch.py.
"""

from collections.abc import Mapping
from typing import Final

from odradek.node.wire.request_times import SAMPLE_MASK
from odradek.protocol.apis import APIS, ApiKey

_FREQUENT: Final = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.STREAMS_GROUP_HEARTBEAT,
        ApiKey.SHARE_GROUP_HEARTBEAT,
        ApiKey.SHARE_FETCH,
        ApiKey.SHARE_ACKNOWLEDGE,
    }
)
"""What members of groups, producers and consumers send all the time."""

SAMPLE_MASK_OF_API: Final[Mapping[int, int]] = {
    key: SAMPLE_MASK if key in _FREQUENT else 0 for key in APIS
}
"""For each API key: correlation ids with none of these bits are those of requests to measure."""
