"""Bytes to messages and back, for whole requests and responses and their headers.

The one door of this package for those who hold a frame: the router on the server's side, and the
tests, tools and nodes on the client's. Frames come without their length prefix. The functions
that do the work are compiled per (API, version) when first used and kept for the process's life.

Every malformed input is a ProtocolError and nothing else, and makes no more of memory than its
own size pays for.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from odradek.protocol.apis import APIS, Api
from odradek.protocol.decoding import Decoder, compile_decoder
from odradek.protocol.encoding import Encoder, compile_encoder
from odradek.protocol.errors import ProtocolError
from odradek.protocol.primitives import skip_tags

REQUEST_ELEMENTS_MAX: Final = 500_000
"""Of all arrays of structs and of strings in a request together. The largest request there is (but
for records) has room for as many of the smallest things that clients name in numbers, which are
partitions with an offset; of empty strings it had room for eight million, which take a second."""

_MALFORMED: Final = (struct.error, IndexError, UnicodeDecodeError)
_UNENCODABLE: Final = (struct.error, AttributeError, TypeError, UnicodeEncodeError)

# By api_key << 16 | api_version: distinct for all pairs of signed 16-bit numbers that are served.
_request_decoders: Final[dict[int, Decoder]] = {}
_response_decoders: Final[dict[int, Decoder]] = {}
_request_encoders: Final[dict[int, Encoder]] = {}
_response_encoders: Final[dict[int, Encoder]] = {}

_FLEXIBLE_SINCE: Final = {
    key: api.flexible_since for key, api in APIS.items() if api.flexible_since is not None
}
_TAGGED_ANSWER_SINCE: Final = {
    key: since for key, since in _FLEXIBLE_SINCE.items() if APIS[key].response_header_version(since)
}
_read_header_start = struct.Struct(">hhih").unpack_from
_HEADER_START_SIZE: Final = 10
_write_int32 = struct.Struct(">i").pack
_write_tagged_int32 = struct.Struct(">ix").pack
_new_tuple = tuple.__new__


class RequestHeader(NamedTuple):
    """What stands before every request; the body begins at `body_offset` of the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_offset: int


def decode_request_header(view: memoryview | bytes) -> RequestHeader:
    """The header of a request frame, also of one whose API or version is not served.

    An unknown version of a known API is read as its newest header, which is what ApiVersions
    needs to refuse politely (KIP-511). The client id keeps its plain length in every version.
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
    except _MALFORMED as error:
        raise ProtocolError(f"malformed request header: {error}") from error
    if at > len(view):
        raise ProtocolError("truncated request header")
    fields = (api_key, api_version, correlation_id, client_id, at)
    return _new_tuple(RequestHeader, fields)


def encode_request_header(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None
) -> bytes:
    """The header that a client puts before a request body."""
    name = b"" if client_id is None else client_id.encode()
    size = -1 if client_id is None else len(name)
    start = struct.pack(">hhih", api_key, api_version, correlation_id, size)
    is_tagged = APIS[api_key].request_header_version(api_version) >= 2
    return start + name + (b"\0" if is_tagged else b"")


def encode_response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """The header that a broker puts before a response body."""
    if api_version >= _TAGGED_ANSWER_SINCE.get(api_key, api_version + 1):
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
    except _MALFORMED as error:
        raise ProtocolError(f"malformed response header: {error}") from error
    if at > len(view):
        raise ProtocolError("truncated response header")
    return correlation_id, at


def decode_request(
    api_key: int, api_version: int, view: memoryview | bytes, offset: int = 0
) -> object:
    """The request whose body begins at `offset` of the frame: an instance of `Api.request`.

    `records` are slices of `view` and live as long as it does; all else is copied out. Bytes
    behind the body are ignored, as Kafka's brokers do: some clients pad.
    """
    try:
        decode = _request_decoders.get(api_key << 16 | api_version)
        if decode is None:
            decode = _compile_request_decoder(api_key, api_version)
        return decode(view, offset)
    except _MALFORMED as error:
        raise _malformed(api_key, api_version, "request", error) from error


def decode_response(
    api_key: int, api_version: int, view: memoryview | bytes, offset: int = 0
) -> object:
    """The response whose body is the rest of the frame from `offset`: an `Api.response`.

    Bytes behind it are an error: they mean that this version was misunderstood.
    """
    try:
        decode = _response_decoders.get(api_key << 16 | api_version)
        if decode is None:
            decode = _compile_response_decoder(api_key, api_version)
        return decode(view, offset)
    except _MALFORMED as error:
        raise _malformed(api_key, api_version, "response", error) from error


def encode_request(api_key: int, api_version: int, message: object) -> list[bytes | memoryview]:
    """The body of a request as buffers to be sent one after another."""
    try:
        encode = _request_encoders.get(api_key << 16 | api_version)
        if encode is None:
            encode = _compile_request_encoder(api_key, api_version)
        return encode(message)
    except _UNENCODABLE as error:
        raise _unencodable(message, api_version, error) from error


def encode_response(api_key: int, api_version: int, message: object) -> list[bytes | memoryview]:
    """The body of a response as buffers to be sent one after another; records are not copied."""
    try:
        encode = _response_encoders.get(api_key << 16 | api_version)
        if encode is None:
            encode = _compile_response_encoder(api_key, api_version)
        return encode(message)
    except _UNENCODABLE as error:
        raise _unencodable(message, api_version, error) from error


def _served(api_key: int, api_version: int) -> Api:
    api = APIS.get(api_key)
    if api is None or not api.min_version <= api_version <= api.max_version:
        raise ProtocolError(f"API {api_key} version {api_version} is not supported")
    return api


def _compile_request_decoder(api_key: int, api_version: int) -> Decoder:
    api = _served(api_key, api_version)
    flexible = api.is_flexible(api_version)
    decode = compile_decoder(
        api.request,
        api_version,
        flexible=flexible,
        may_trail=True,
        elements_max=REQUEST_ELEMENTS_MAX,
    )
    return _request_decoders.setdefault(api_key << 16 | api_version, decode)


def _compile_response_decoder(api_key: int, api_version: int) -> Decoder:
    api = _served(api_key, api_version)
    decode = compile_decoder(api.response, api_version, flexible=api.is_flexible(api_version))
    return _response_decoders.setdefault(api_key << 16 | api_version, decode)


def _compile_request_encoder(api_key: int, api_version: int) -> Encoder:
    api = _served(api_key, api_version)
    encode = compile_encoder(api.request, api_version, flexible=api.is_flexible(api_version))
    return _request_encoders.setdefault(api_key << 16 | api_version, encode)


def _compile_response_encoder(api_key: int, api_version: int) -> Encoder:
    api = _served(api_key, api_version)
    encode = compile_encoder(api.response, api_version, flexible=api.is_flexible(api_version))
    return _response_encoders.setdefault(api_key << 16 | api_version, encode)


def _malformed(api_key: int, api_version: int, what: str, error: Exception) -> ProtocolError:
    return ProtocolError(f"malformed {APIS[api_key].name} {what} v{api_version}: {error}")


def _unencodable(message: object, api_version: int, error: Exception) -> ProtocolError:
    name = type(message).__name__
    return ProtocolError(f"{name} v{api_version} cannot carry these values: {error}")
