"""Frames of the Kafka protocol: an int32 length and that many bytes.

Also recognises other protocols on a Kafka port, for the log. Pure. Called by receive_buffer.py and
connection.py."""

import struct

_LENGTH = struct.Struct(">i")
LENGTH_BYTES = _LENGTH.size
read_length = _LENGTH.unpack_from
"""`(length,) = read_length(buffer, offset)`: the signed length prefix of a frame."""
pack_length = _LENGTH.pack

Buffer = bytes | bytearray | memoryview

_HTTP_STARTS = (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"PRI ")
_TLS_HANDSHAKE = b"\x16\x03"


def describe_foreign_protocol(start: bytes) -> str | None:
    """The protocol that these first bytes belong to, and what to do. None if unknown."""
    if start[:4] in _HTTP_STARTS:
        return (
            "received an HTTP request on a Kafka listener. Probes and metrics have a port of"
            " their own."
        )
    if start[:2] == _TLS_HANDSHAKE:
        return (
            "received a TLS handshake on a listener without TLS. Use"
            " security.protocol=PLAINTEXT or the port of a TLS listener."
        )
    if start[:4] == b"SSH-":
        return "received an SSH handshake on a Kafka listener"
    return None


def explain_bad_frame(start: bytes, length: int) -> str:
    """Why these bytes, with this length, are not a valid frame."""
    foreign = describe_foreign_protocol(start)
    if foreign is not None:
        return foreign
    if length < 0:
        return f"invalid frame length {length}"
    return (
        f"a frame of {length} bytes exceeds socket.request.max.bytes or, before authentication,"
        " sasl.server.max.receive.size"
    )


def host_and_port(name: object) -> tuple[str, int]:
    """Of a socket's name; empty for sockets without one."""
    if isinstance(name, tuple) and len(name) >= 2:
        # An IPv4 client of an IPv6 socket is known by its IPv4 address, as in Java.
        return str(name[0]).removeprefix("::ffff:"), int(name[1])
    return "", 0
