"""Subscriptions as classic members of consumer groups send them in JoinGroup."""

from struct import pack

from odradek.protocol.consumer_protocol import VERSION_MAX, ConsumerProtocolSubscription
from odradek.protocol.encoding import compile_record_encoder


def encode_subscription(
    subscription: ConsumerProtocolSubscription, version: int = VERSION_MAX
) -> bytes:
    """The bytes of a version from 0 to 3, which comes first."""
    prefix = pack(">h", version)
    encode = compile_record_encoder(
        ConsumerProtocolSubscription, version, flexible=False, prefix=prefix
    )
    return encode(subscription)
