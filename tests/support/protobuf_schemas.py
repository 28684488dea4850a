"""Protobuf schemas for tests, built as protoc writes them: files of descriptors."""

import base64
from collections.abc import Sequence
from typing import Any

from google.protobuf import descriptor_pb2

Field = tuple[Any, ...]
"""(name, number, type, keyword arguments of a FieldDescriptorProto)."""

REPEATED = 3
INT32, INT64, UINT64, BOOL, STRING, MESSAGE, BYTES, UINT32, ENUM = 5, 3, 4, 8, 9, 11, 12, 13, 14


def message(name: str, *fields: Field, **more: Any) -> descriptor_pb2.DescriptorProto:  # noqa: ANN401
    """A message of proto3; a field is (name, number, type) and what else is to be set."""
    return descriptor_pb2.DescriptorProto(
        name=name,
        field=[
            descriptor_pb2.FieldDescriptorProto(
                **{"name": each[0], "number": each[1], "type": each[2], "label": 1}
                | (each[3] if len(each) > 3 else {})
            )
            for each in fields
        ],
        **more,
    )


def file(
    name: str,
    *messages: descriptor_pb2.DescriptorProto,
    imports: Sequence[str] = (),
    **more: Any,  # noqa: ANN401  # fields of the descriptor
) -> bytes:
    """A FileDescriptorProto of the package `shop`."""
    written: bytes = descriptor_pb2.FileDescriptorProto(
        name=name,
        package="shop",
        syntax="proto3",
        message_type=messages,
        dependency=imports,
        **more,
    ).SerializeToString()
    return written


def descriptor_set(*files: bytes) -> bytes:
    """What `protoc --descriptor_set_out` writes."""
    written: bytes = descriptor_pb2.FileDescriptorSet(
        file=[descriptor_pb2.FileDescriptorProto.FromString(each) for each in files]
    ).SerializeToString()
    return written


def served(file_bytes: bytes) -> str:
    """What a registry serves for `?format=serialized`."""
    return base64.b64encode(file_bytes).decode()
