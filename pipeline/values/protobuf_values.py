"""Values in Protobuf: bare messages of a descriptor set, or those of a registry.

Columns are those of the given message, or of the newest schema when the job started; fields that it
does not know are left out, those that a writer did not know have their defaults. With a registry a
record names its schema and, within it, its message: it has to be the message of the columns.
"""

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.values.decoded_values import BadValue, DecodedValues, decode_rows
from odradek.pipeline.values.protobuf_columns import Descriptor, protobuf_columns
from odradek.pipeline.values.registry import RegisteredSchema, SchemaRegistry
from odradek.pipeline.values.wire_format import split_wire_format

_NESTING_MAX = 100
"""Protobuf's own limit of nested messages."""


class ProtobufValues:
    """`files` are FileDescriptorProtos, each after those that it imports. Without `message` it is
    the first message of the last file. With a registry, values are in Confluent's wire format."""

    def __init__(
        self,
        files: tuple[bytes, ...],
        message: str | None = None,
        registry: SchemaRegistry | None = None,
    ) -> None:
        self._files = files
        self._registry = registry
        self._descriptor = _message(files, message)
        self._message = str(self._descriptor.full_name)
        self._columns, self._to_row = protobuf_columns(self._descriptor)
        self._names: dict[tuple[int, tuple[int, ...]], str] = {}

    def __reduce__(self) -> tuple[object, ...]:
        """Descriptors belong to a process: only their bytes travel."""
        return ProtobufValues, (self._files, self._message, self._registry)

    def columns(self) -> pa.Schema:
        """The fields of the message."""
        return self._columns

    def decode(self, values: pa.BinaryArray) -> DecodedValues:
        """See ValueDecoder."""
        return decode_rows(values, self._columns, self._row_decoder())

    def fingerprint(self) -> str:
        """Of the message's files."""
        digest = hashlib.sha256(f"protobuf {self._registry is not None} {self._message}".encode())
        for file in self._files:
            digest.update(hashlib.sha256(file).digest())
        return digest.hexdigest()

    def _row_decoder(self) -> Callable[[bytes], Sequence[object]]:
        from google.protobuf.message import DecodeError
        from google.protobuf.message_factory import GetMessageClass

        message_class, to_row = GetMessageClass(self._descriptor), self._to_row

        def decode_row(value: bytes) -> Sequence[object]:
            if self._registry is not None:
                value = self._without_wire_format(value, self._registry)
            try:
                return to_row(message_class.FromString(value))
            except (DecodeError, UnicodeDecodeError) as error:
                raise BadValue(f"not a {self._message}: {error}") from None

        return decode_row

    def _without_wire_format(self, value: bytes, registry: SchemaRegistry) -> bytes:
        """The message's bytes; BadValue if they are of another message."""
        schema_id, rest = split_wire_format(value)
        indexes, rest = message_indexes(rest)
        if (schema_id, indexes) not in self._names:
            registered = registry.by_id(schema_id, serialized=True)
            try:
                descriptor = _message(registered_files(registered), None, indexes)
            except PipelineError as error:
                # The registry answered: what is wrong is the id that this one record holds.
                raise BadValue(f"schema {schema_id} of the registry: {error}") from None
            self._names[schema_id, indexes] = str(descriptor.full_name)
        name = self._names[schema_id, indexes]
        if name != self._message:
            raise BadValue(f"a {name} (schema {schema_id}), where the columns are {self._message}")
        return rest


def message_indexes(value: bytes) -> tuple[tuple[int, ...], bytes]:
    """(path of the message within its file, the rest): a count and indexes as zigzag varints.

    A single zero byte stands for the first message.
    """
    count, place = _varint(value, 0)
    if not 0 <= count <= _NESTING_MAX:
        raise BadValue(f"{count} message indexes, which no message has")
    indexes = []
    for _ in range(count):
        index, place = _varint(value, place)
        indexes.append(index)
    return tuple(indexes) or (0,), value[place:]


def descriptor_set_files(serialized: bytes, source: str) -> tuple[bytes, ...]:
    """The files of a descriptor set, as protoc writes it: each after its imports."""
    pb2, decode_error = _descriptor_module()
    try:
        files = pb2.FileDescriptorSet.FromString(serialized).file
    except decode_error:
        files = ()
    if not files:
        raise PipelineError(
            f"value.schema {source} is no descriptor set; make one by"
            " protoc --include_imports --descriptor_set_out=FILE NAME.proto"
        )
    return tuple(file.SerializeToString(deterministic=True) for file in files)


def registered_files(schema: RegisteredSchema) -> tuple[bytes, ...]:
    """The files of a registered schema, which the registry gave in base64."""
    pb2, decode_error = _descriptor_module()
    files = []
    for name, text in (*schema.references, ("", schema.text)):
        try:
            file = pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
        except (binascii.Error, decode_error):
            raise PipelineError(
                "the schema registry did not give a Protobuf schema for format=serialized;"
                " give a descriptor set as value.schema and check that the schema is Protobuf"
            ) from None
        # Importers know a reference by the name of the reference, whatever it calls itself.
        file.name = name or file.name
        files.append(file.SerializeToString(deterministic=True))
    return tuple(files)


def _message(files: Sequence[bytes], name: str | None, indexes: Iterable[int] = (0,)) -> Descriptor:
    """The message of this name, or that at `indexes` of the last file."""
    from google.protobuf import descriptor_pool

    pb2, _ = _descriptor_module()
    pool = descriptor_pool.DescriptorPool()
    protos = [pb2.FileDescriptorProto.FromString(file) for file in files]
    well_known = _well_known()
    try:
        for proto in (*well_known.values(), *protos):
            if proto.name not in well_known or proto is well_known[proto.name]:
                pool.AddSerializedFile(proto.SerializeToString())
        if name is not None:
            return pool.FindMessageTypeByName(name.lstrip("."))
        names = _path(protos[-1], indexes)
        return pool.FindMessageTypeByName(".".join([*filter(None, [protos[-1].package]), *names]))
    except (KeyError, TypeError, IndexError) as error:
        known = ", ".join(
            f"{proto.package}.{message.name}".lstrip(".")
            for proto in protos
            for message in proto.message_type
        )
        raise PipelineError(
            f"the Protobuf schema has no message {name or tuple(indexes)} or lacks an import"
            f" ({error}); its messages are {known[:200]}"
        ) from None


def _path(file: Descriptor, indexes: Iterable[int]) -> list[str]:
    names, messages = [], file.message_type
    for index in indexes:
        if index < 0:
            raise IndexError(f"message index {index}")
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return names


def _well_known() -> dict[str, Descriptor]:
    """Google's own files by name, which neither a registry nor every descriptor set holds; each
    after its imports."""
    from google.protobuf import (
        any_pb2,
        api_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        source_context_pb2,
        struct_pb2,
        timestamp_pb2,
        type_pb2,
        wrappers_pb2,
    )

    modules = (
        *(any_pb2, source_context_pb2, type_pb2, api_pb2, descriptor_pb2, duration_pb2),
        *(empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2),
    )
    files = {}
    for module in modules:
        proto = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(proto)
        files[str(proto.name)] = proto
    return files


def _descriptor_module() -> tuple[Descriptor, type[Exception]]:
    try:
        from google.protobuf import descriptor_pb2
        from google.protobuf.message import DecodeError
    except ImportError:
        raise PipelineError(
            "value.format protobuf needs the package protobuf: pip install protobuf"
        ) from None
    return descriptor_pb2, DecodeError


def _varint(value: bytes, place: int) -> tuple[int, int]:
    """A zigzag varint of at most 32 bits, and where the next byte is."""
    number = shift = 0
    while True:
        if place >= len(value) or shift > 28:
            raise BadValue("it ends within its message indexes")
        byte = value[place]
        number |= (byte & 0x7F) << shift
        place += 1
        shift += 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), place
