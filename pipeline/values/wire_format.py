"""Confluent's wire format: a zero byte, the schema's id in four bytes (big endian), the value."""

import struct

from odradek.pipeline.values.decoded_values import BadValue

_HEAD = struct.Struct(">BI")


def split_wire_format(value: bytes) -> tuple[int, bytes]:
    """(id of the schema, the rest)."""
    if len(value) < _HEAD.size or value[0] != 0:
        found = f"begins with the byte {value[0]}" if value else "is empty"
        if value and value[0] == 0:
            found = f"has only {len(value)} bytes"
        raise BadValue(
            f"not in the wire format of a schema registry (zero byte, schema id): it {found}"
        )
    magic_and_id = _HEAD.unpack_from(value)
    return magic_and_id[1], value[_HEAD.size :]
