"""Which requests are measured, and the group of each API by which their times are counted.

Of the frequent APIs one request in sixteen of each client, by its correlation id, which clients
count up; of all others each one.
"""

from collections.abc import Mapping
from typing import Final

from odradek.node.wire.request_times import GROUPS
from odradek.protocol.apis import APIS, ApiKey

_KEYS: Final[Mapping[str, frozenset[ApiKey]]] = {
    "other": frozenset(
        {
            ApiKey.SASL_HANDSHAKE,
            ApiKey.SASL_AUTHENTICATE,
            ApiKey.API_VERSIONS,
            ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
            ApiKey.PUSH_TELEMETRY,
        }
    ),
    "produce": frozenset({ApiKey.PRODUCE}),
    "fetch": frozenset({ApiKey.FETCH}),
    "metadata": frozenset(
        {
            ApiKey.METADATA,
            ApiKey.LIST_OFFSETS,
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            ApiKey.FIND_COORDINATOR,
            ApiKey.DESCRIBE_CLUSTER,
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        }
    ),
    "group": frozenset(
        {
            ApiKey.JOIN_GROUP,
            ApiKey.SYNC_GROUP,
            ApiKey.HEARTBEAT,
            ApiKey.LEAVE_GROUP,
            ApiKey.OFFSET_COMMIT,
            ApiKey.OFFSET_FETCH,
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            ApiKey.STREAMS_GROUP_HEARTBEAT,
            ApiKey.SHARE_GROUP_HEARTBEAT,
        }
    ),
    "transaction": frozenset(
        {
            ApiKey.INIT_PRODUCER_ID,
            ApiKey.ADD_PARTITIONS_TO_TXN,
            ApiKey.ADD_OFFSETS_TO_TXN,
            ApiKey.END_TXN,
            ApiKey.WRITE_TXN_MARKERS,
            ApiKey.TXN_OFFSET_COMMIT,
        }
    ),
    "share": frozenset({ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE}),
}
"""All others are of administrators and tools."""

_NAMED: Final = {key: name for name, keys in _KEYS.items() for key in keys}
GROUP_OF_API: Final[Mapping[int, int]] = {
    key: GROUPS.index(_NAMED.get(ApiKey(key), "admin")) for key in APIS
}
"""The index in GROUPS of each API key."""

_SAMPLED: Final = frozenset({"produce", "fetch", "group", "share"})
SAMPLE_MASK_OF_API: Final[Mapping[int, int]] = {
    key: 15 if GROUPS[group] in _SAMPLED else 0 for key, group in GROUP_OF_API.items()
}
"""For each API key: correlation ids with none of these bits are those of requests to measure."""
