"""Types and special values of the protocol, and the text form of UUIDs.

A UUID is `bytes` everywhere, as on the wire. Only output for people has the text form.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Final, Generic, TypeAlias, TypeVar

R_co = TypeVar("R_co", covariant=True)


class Request(Generic[R_co]):
    """A message or command with a response of type R_co, for the type checker:
    `call(request: Request[R]) -> Reply[R]`."""

    __slots__ = ()


Uuid: TypeAlias = bytes
"""Sixteen bytes, big-endian as RFC 4122 orders them."""

RecordBuffers: TypeAlias = bytes | memoryview | Sequence[bytes | memoryview]
"""Record batches in wire order: one buffer, or several that are sent one after another."""

NO_OFFSET: Final = -1
NO_EPOCH: Final = -1
"""Of a leader, a producer, a coordinator or a share state."""
NO_PRODUCER_ID: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1
NEVER: Final = 2**63 - 1
"""Java's Long.MAX_VALUE: a deadline, duration or count that is never reached."""

ZERO_UUID: Final[Uuid] = bytes(16)
"""No id: the default of fields of type uuid."""

NO_AUTHORIZED_OPERATIONS: Final = -(2**31)
"""The authorized operations in a response to a client that did not request them (KIP-430)."""


def uuid_to_text(value: Uuid) -> str:
    """Kafka's text form: url-safe base64 of the sixteen bytes without padding, 22 characters."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode("ascii")


def uuid_from_text(text: str) -> Uuid:
    """The inverse of `uuid_to_text`; ValueError if the text is not 22 characters of base64."""
    try:
        value = base64.b64decode(text.encode("ascii") + b"==", altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ValueError(f"{text!r} is not a base64 UUID") from error
    # The decoder also accepts the characters of standard base64.
    if len(text) != 22 or len(value) != 16 or "+" in text or "/" in text:
        raise ValueError(f"{text!r} is not a base64 UUID of 22 characters")
    return value
