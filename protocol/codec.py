"""Decodes and encodes requests and responses with their headers, as frames without length prefix.

Decoders and encoders are compiled for each (API, version) when they are first used.

Malformed input raises ProtocolError and nothing else, and allocates memory only in proportion to
its size.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from operator import attrgetter
from typing import Final, NamedTuple, TypeVar

from odradek.protocol.apis import APIS, Api, ApiKey
from odradek.protocol.decoding import (
    MALFORMED,
    Decoder,
    SlicedDecoder,
    compile_decoder,
    compile_sliced_decoder,
)
from odradek.protocol.encoding import (
    Encoder,
    SlicedEncoder,
    compile_encoder,
    compile_sliced_encoder,
)
from odradek.protocol.errors import ProtocolError
from odradek.protocol.primitives import skip_tags

C = TypeVar("C")

REQUEST_ELEMENTS_MAX: Final = 200_000
"""The limit for all arrays of most requests together: 100,000 topics with one partition each.
Without it eight million empty strings would fit into the largest request without records, and a
request and its response would take a gigabyte of memory."""

COMMAND_ELEMENTS_MAX: Final = 20_000
"""The same for requests that a coordinator takes as one command: their elements are the members of
a group, or the topics and partitions of one member."""
MEMBERS_LEAVING_MAX: Final = 10_000
"""The same for LeaveGroup, whose elements take longest."""
LIST_ELEMENTS_MAX: Final = 1_000
"""The same for requests with short lists only: assignors, states to filter by, features."""

_ELEMENTS_MAX: Final = {
    ApiKey.JOIN_GROUP: LIST_ELEMENTS_MAX,
    ApiKey.LIST_GROUPS: LIST_ELEMENTS_MAX,
    ApiKey.LIST_TRANSACTIONS: LIST_ELEMENTS_MAX,
    ApiKey.LIST_CONFIG_RESOURCES: LIST_ELEMENTS_MAX,
    ApiKey.DESCRIBE_QUORUM: LIST_ELEMENTS_MAX,
    ApiKey.UPDATE_FEATURES: LIST_ELEMENTS_MAX,
    ApiKey.ADD_RAFT_VOTER: LIST_ELEMENTS_MAX,
    ApiKey.SYNC_GROUP: COMMAND_ELEMENTS_MAX,
    ApiKey.LEAVE_GROUP: MEMBERS_LEAVING_MAX,
    ApiKey.OFFSET_DELETE: COMMAND_ELEMENTS_MAX,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: COMMAND_ELEMENTS_MAX,
    ApiKey.SHARE_GROUP_HEARTBEAT: COMMAND_ELEMENTS_MAX,
    ApiKey.STREAMS_GROUP_HEARTBEAT: COMMAND_ELEMENTS_MAX,
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: COMMAND_ELEMENTS_MAX,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: COMMAND_ELEMENTS_MAX,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: COMMAND_ELEMENTS_MAX,
    ApiKey.SHARE_FETCH: COMMAND_ELEMENTS_MAX,
    ApiKey.SHARE_ACKNOWLEDGE: COMMAND_ELEMENTS_MAX,
    ApiKey.ADD_PARTITIONS_TO_TXN: COMMAND_ELEMENTS_MAX,
    ApiKey.WRITE_TXN_MARKERS: COMMAND_ELEMENTS_MAX,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: COMMAND_ELEMENTS_MAX,
    ApiKey.READ_SHARE_GROUP_STATE: COMMAND_ELEMENTS_MAX,
    ApiKey.WRITE_SHARE_GROUP_STATE: COMMAND_ELEMENTS_MAX,
    ApiKey.DELETE_SHARE_GROUP_STATE: COMMAND_ELEMENTS_MAX,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: COMMAND_ELEMENTS_MAX,
}

_UNENCODABLE: Final = (struct.error, AttributeError, TypeError, UnicodeEncodeError)


class _CompiledCodecs(dict[int, C]):
    """The decoders or encoders of one side by `(API key << 16) + version`, compiled when used."""

    def __init__(self, side: str, compile_codec: Callable[[type, Api, int], C]) -> None:
        self._struct_class = attrgetter(side)
        self._compile = compile_codec

    def __missing__(self, key: int) -> C:
        version = (key & 0xFFFF ^ 0x8000) - 0x8000  # an int16
        api_key = (key - version) >> 16
        api = APIS.get(api_key)
        if api is None or not api.min_version <= version <= api.max_version:
            raise ProtocolError(f"API {api_key} version {version} is not supported")
        return self.setdefault(key, self._compile(self._struct_class(api), api, version))


def _compile_request(compile_codec: Callable[..., C]) -> Callable[[type, Api, int], C]:
    """A decoder of requests, whose elements are limited. Some clients pad their requests."""

    def compile_limited(struct_class: type, api: Api, version: int) -> C:
        return compile_codec(
            struct_class,
            version,
            flexible=api.is_flexible(version),
            may_trail=True,
            elements_max=_ELEMENTS_MAX.get(api.key, REQUEST_ELEMENTS_MAX),
        )

    return compile_limited


def _compile_other(compile_codec: Callable[..., C]) -> Callable[[type, Api, int], C]:
    def compile_unlimited(struct_class: type, api: Api, version: int) -> C:
        return compile_codec(struct_class, version, flexible=api.is_flexible(version))

    return compile_unlimited


_request_decoders: Final = _CompiledCodecs[Decoder]("request", _compile_request(compile_decoder))
_sliced_request_decoders: Final = _CompiledCodecs[SlicedDecoder](
    "request", _compile_request(compile_sliced_decoder)
)
_response_decoders: Final = _CompiledCodecs[Decoder]("response", _compile_other(compile_decoder))
_request_encoders: Final = _CompiledCodecs[Encoder]("request", _compile_other(compile_encoder))
_response_encoders: Final = _CompiledCodecs[Encoder]("response", _compile_other(compile_encoder))
_sliced_response_encoders: Final = _CompiledCodecs[SlicedEncoder](
    "response", _compile_other(compile_sliced_encoder)
)

_FLEXIBLE_SINCE: Final = {
    key: api.flexible_since for key, api in APIS.items() if api.flexible_since is not None
}
_TAGGED_RESPONSE_HEADER_SINCE: Final = {
    key: since for key, since in _FLEXIBLE_SINCE.items() if APIS[key].response_header_version(since)
}
_read_header_start = struct.Struct(">hhih").unpack_from
_HEADER_START_SIZE: Final = 10
_write_int32 = struct.Struct(">i").pack
_write_tagged_int32 = struct.Struct(">ix").pack
_new_tuple = tuple.__new__


class RequestHeader(NamedTuple):
    """The header of a request; the body begins at `body_offset` of the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_offset: int


def elements_max_of(api_key: int) -> int:
    """How many elements the arrays of a request may have together."""
    return _ELEMENTS_MAX.get(ApiKey(api_key), REQUEST_ELEMENTS_MAX)


def decode_request_header(view: memoryview | bytes) -> RequestHeader:
    """The header of a request frame, also of an API or a version that is not served.

    An unknown version of a known API has the newest header: the broker must be able to answer an
    ApiVersions request of any version (KIP-511). The client id is never compact.
    """
    try:
        api_key, api_version, correlation_id, size = _read_header_start(view)
        at = _HEADER_START_SIZE
        if size < 0:
            client_id = None
        else:
            at += size
            client_id = str(view[_HEADER_START_SIZE:at], "utf-8")
        if api_version >= _FLEXIBLE_SINCE.get(api_key, api_version + 1):
            count = view[at]
            at += 1
            if count:
                at = skip_tags(view, at, count)
    except MALFORMED as error:
        raise ProtocolError(f"malformed request header: {error}") from error
    if at > len(view):
        raise ProtocolError("truncated request header")
    fields = (api_key, api_version, correlation_id, client_id, at)
    return _new_tuple(RequestHeader, fields)


def encode_request_header(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None
) -> bytes:
    """The header before a request body."""
    name = b"" if client_id is None else client_id.encode()
    size = -1 if client_id is None else len(name)
    start = struct.pack(">hhih", api_key, api_version, correlation_id, size)
    is_tagged = APIS[api_key].request_header_version(api_version) >= 2
    return start + name + (b"\0" if is_tagged else b"")


def encode_response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """The header before a response body."""
    if api_version >= _TAGGED_RESPONSE_HEADER_SINCE.get(api_key, api_version + 1):
        return _write_tagged_int32(correlation_id)
    return _write_int32(correlation_id)


def decode_response_header(
    api_key: int, api_version: int, view: memoryview | bytes
) -> tuple[int, int]:
    """The correlation id of a response frame, and where its body begins."""
    try:
        (correlation_id,) = struct.unpack_from(">i", view)
        at = 4
        if APIS[api_key].response_header_version(api_version) >= 1:
            at = skip_tags(view, at + 1, view[at])
    except MALFORMED as error:
        raise ProtocolError(f"malformed response header: {error}") from error
    if at > len(view):
        raise ProtocolError("truncated response header")
    return correlation_id, at


def decode_request(
    api_key: int, api_version: int, view: memoryview | bytes, offset: int = 0
) -> object:
    """The request whose body begins at `offset` of the frame: an instance of `Api.request`.

    `records` are slices of `view` and keep it alive; everything else is copied. Bytes behind the
    body are ignored, as in Kafka: some clients pad.
    """
    try:
        return _request_decoders[(api_key << 16) + api_version](view, offset)
    except MALFORMED as error:
        raise _malformed(api_key, api_version, "request", error) from error


def decode_request_in_slices(
    api_key: int, api_version: int, view: memoryview | bytes, offset: int = 0
) -> Generator[None, None, object]:
    """As `decode_request`, a generator that returns the request: it yields about every millisecond,
    so that others can be served while a large request is decoded."""
    try:
        return (yield from _sliced_request_decoders[(api_key << 16) + api_version](view, offset))
    except MALFORMED as error:
        raise _malformed(api_key, api_version, "request", error) from error


def decode_response(
    api_key: int, api_version: int, view: memoryview | bytes, offset: int = 0
) -> object:
    """The response whose body is the rest of the frame from `offset`: an `Api.response`.

    Bytes behind the body are an error: the response is not of this version.
    """
    try:
        return _response_decoders[(api_key << 16) + api_version](view, offset)
    except MALFORMED as error:
        raise _malformed(api_key, api_version, "response", error) from error


def encode_request(api_key: int, api_version: int, message: object) -> list[bytes | memoryview]:
    """The body of a request as buffers to be sent one after another."""
    try:
        return _request_encoders[(api_key << 16) + api_version](message)
    except _UNENCODABLE as error:
        raise _unencodable(message, api_version, error) from error


def encode_response(api_key: int, api_version: int, message: object) -> list[bytes | memoryview]:
    """The body of a response as buffers to be sent one after another; records are not copied."""
    try:
        return _response_encoders[(api_key << 16) + api_version](message)
    except _UNENCODABLE as error:
        raise _unencodable(message, api_version, error) from error


def encode_response_in_slices(
    api_key: int, api_version: int, message: object
) -> Generator[None, None, list[bytes | memoryview]]:
    """As `encode_response`, a generator that returns the buffers: it yields about every
    millisecond. The message must not change until it ends."""
    try:
        return (yield from _sliced_response_encoders[(api_key << 16) + api_version](message))
    except _UNENCODABLE as error:
        raise _unencodable(message, api_version, error) from error


def _malformed(api_key: int, api_version: int, what: str, error: Exception) -> ProtocolError:
    return ProtocolError(f"malformed {APIS[api_key].name} {what} v{api_version}: {error}")


def _unencodable(message: object, api_version: int, error: Exception) -> ProtocolError:
    name = type(message).__name__
    return ProtocolError(f"{name} v{api_version} cannot carry these values: {error}")
