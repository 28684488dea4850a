"""The value types of the wire that Python has no name for, and how they are written as text.

A UUID on the wire is sixteen raw bytes, and stays `bytes` in every message, image and key: it is
hashable, comparable and needs no conversion. Only texts meant for people use the other form.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Final, Generic, TypeAlias, TypeVar

R_co = TypeVar("R_co", covariant=True)


class Request(Generic[R_co]):
    """A request that is answered with an R_co: the base class of messages and commands.

    It has no fields and no methods. It lets the type checker derive the response of a call:
    `call(request: Request[R]) -> Reply[R]`.
    """

    __slots__ = ()


Uuid: TypeAlias = bytes
"""Sixteen bytes, big-endian as RFC 4122 orders them."""

RecordBuffers: TypeAlias = bytes | memoryview | Sequence[bytes | memoryview]
"""Record batches in wire order: one buffer, or several that are sent one after another unjoined."""

NO_OFFSET: Final = -1
NO_EPOCH: Final = -1
"""Of a leader, a producer, a coordinator or a share state."""
NO_PRODUCER_ID: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1
NEVER: Final = 2**63 - 1
"""Java's Long.MAX_VALUE: a deadline, duration or count that is not reached."""

ZERO_UUID: Final[Uuid] = bytes(16)
"""Kafka's "no id": what a field of type uuid holds where nothing was said."""

NO_AUTHORIZED_OPERATIONS: Final = -(2**31)
"""What an authorized-operations field says when the client did not ask for it (KIP-430)."""


def uuid_to_text(value: Uuid) -> str:
    """Kafka's text form: url-safe base64 of the sixteen bytes without the padding, 22 letters."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode("ascii")


def uuid_from_text(text: str) -> Uuid:
    """The inverse of `uuid_to_text`; ValueError if the text is not 22 letters of that alphabet."""
    try:
        value = base64.b64decode(text.encode("ascii") + b"==", altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ValueError(f"{text!r} is not a base64 UUID") from error
    # The decoder also takes the letters of the other alphabet.
    if len(text) != 22 or len(value) != 16 or "+" in text or "/" in text:
        raise ValueError(f"{text!r} is not a base64 UUID of 22 letters")
    return value
