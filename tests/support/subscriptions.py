"""Subscriptions as classic members of consumer groups send them in JoinGroup."""

from struct import pack

from odradek.protocol.consumer_protocol import (
    VERSION_MAX,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    encode_assignment,
)


def encode_subscription(
    subscription: ConsumerProtocolSubscription, version: int = VERSION_MAX
) -> bytes:
    """The bytes of a version from 0 to 3, its number in front."""
    user_data = subscription.user_data
    parts = [pack(">hi", version, len(subscription.topics)), *map(_string, subscription.topics)]
    parts.append(pack(">i", -1) if user_data is None else pack(">i", len(user_data)) + user_data)
    if version >= 1:
        owned = ConsumerProtocolAssignment(assigned_partitions=subscription.owned_partitions)
        parts.append(encode_assignment(owned, 0)[2:-4])  # without version and user data
    if version >= 2:
        parts.append(pack(">i", subscription.generation_id))
    if version >= 3:
        rack_id = subscription.rack_id
        parts.append(pack(">h", -1) if rack_id is None else _string(rack_id))
    return b"".join(parts)


def _string(value: str) -> bytes:
    encoded = value.encode()
    return pack(">h", len(encoded)) + encoded
