"""Records of coordinators as bytes: one table has the fields of each type of record.

A record's key begins with an int16, the record type, and is never flexible. A value begins with an
int16 version. A null value is a tombstone: it removes the key. Both are declared with
protocol.schema and compiled when they are first used. The formats are Kafka's.

Every module of records lists its formats; each type of shard has one `RecordSerde` of them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from odradek.protocol.decoding import Decoder, compile_decoder
from odradek.protocol.encoding import compile_record_encoder
from odradek.protocol.errors import ProtocolError
from odradek.protocol.schema import fields_of

Convert: TypeAlias = Callable[[Any], Any]
Encode: TypeAlias = Callable[[Any], bytes]
Entry: TypeAlias = tuple[bytes, bytes | None]
"""Key and value in a log."""

TEXT_LENGTH_MAX: Final = 8_000
"""Texts of so many characters fit into a record, whatever characters they are: a key's text has at
most 32,767 bytes."""
_INT16: Final = struct.Struct(">h")


class ValueFormat(Protocol):
    """Encodes and decodes the values of a record type, with the version in front."""

    def encoder(self, version: int | None) -> Encode:
        """The encoder of `version`, or (None) of the version that this release writes."""

    def decode(self, octets: bytes) -> object:
        """The value, of any version. ProtocolError if the version is a newer one."""


def read_version(octets: bytes, version_max: int, name: str) -> int:
    """The version that a value begins with."""
    version: int = _INT16.unpack_from(octets)[0]
    if not 0 <= version <= version_max:
        raise ProtocolError(f"{name} version {version}; this release reads 0 to {version_max}")
    return version


class SchemaValue:
    """Values declared with protocol.schema.

    `name` is Kafka's. `make` converts a decoded struct to the value: a msgspec class is filled from
    the fields of the same names. Without `to_struct` a value is encoded from its attributes.
    `version` is the version to write, or returns that of a value.
    """

    def __init__(
        self,
        name: str,
        declared: type,
        make: type[msgspec.Struct] | Convert,
        *,
        to_struct: Convert | None = None,
        version: int | Callable[[Any], int] = 0,
        version_max: int = 0,
        flexible_since: int = 0,
    ) -> None:
        self._name = name
        self._declared = declared
        self._make = _from_attributes(make) if isinstance(make, type) else make
        self._to_struct = to_struct
        self._version = version
        self._version_max = version_max
        self._flexible_since = flexible_since
        self._encoders: dict[int, Encode] = {}
        self._decoders: dict[int, Decoder] = {}

    def encoder(self, version: int | None) -> Encode:
        """See ValueFormat."""
        if version is None:
            if not isinstance(self._version, int):
                return self._encode_by_value(self._version)
            version = self._version
        return self._encoders.get(version) or self._compile_encoder(version)

    def _encode_by_value(self, version_of: Callable[[Any], int]) -> Encode:
        encoders = {version: self.encoder(version) for version in range(self._version_max + 1)}
        return lambda value: encoders[version_of(value)](value)

    def decode(self, octets: bytes) -> object:
        """See ValueFormat."""
        version = read_version(octets, self._version_max, self._name)
        decode = self._decoders.get(version) or self._compile_decoder(version)
        return self._make(decode(octets, _INT16.size))

    def _compile_encoder(self, version: int) -> Encode:
        flexible = version >= self._flexible_since
        prefix = _INT16.pack(version)
        encode = compile_record_encoder(self._declared, version, flexible=flexible, prefix=prefix)
        self._encoders[version] = _composed(encode, self._to_struct)
        return self._encoders[version]

    def _compile_decoder(self, version: int) -> Decoder:
        flexible = version >= self._flexible_since
        decode = compile_decoder(self._declared, version, flexible=flexible, may_trail=True)
        self._decoders[version] = decode
        return decode


class RecordFormat:
    """One type of record. `record` is its class: the fields of its key in order, then its value.

    `key` is declared with protocol.schema and encoded from the record's attributes, or from those
    of `key_of(record)`; then `make` makes a record of the key's fields and the value. `older_types`
    have the same fields and are only read. RecordSerde finds the format by `kinds`.
    """

    def __init__(
        self,
        record_type: int,
        record: type[msgspec.Struct],
        key: type,
        value: ValueFormat,
        *,
        key_of: Convert | None = None,
        make: Callable[..., Any] | None = None,
        older_types: tuple[int, ...] = (),
        kinds: tuple[type, ...] = (),
    ) -> None:
        self.types = (record_type, *older_types)
        self.kinds = kinds or (record,)
        self.value = value
        self._key = key
        self._key_of = key_of
        self._make = make or record
        self._key_fields = attrgetter(*(field.name for field in fields_of(key)))
        self._decode_key: Decoder | None = None

    def key_encoder(self) -> Encode:
        """The encoder of a record's key."""
        prefix = _INT16.pack(self.types[0])
        encode = compile_record_encoder(self._key, 0, flexible=False, prefix=prefix)
        return _composed(encode, self._key_of)

    def decode(self, key: bytes, value: bytes | None) -> object:
        """The record of key and value."""
        if self._decode_key is None:
            self._decode_key = compile_decoder(self._key, 0, flexible=False, may_trail=True)
        fields = self._key_fields(self._decode_key(key, _INT16.size))
        known = None if value is None else self.value.decode(value)
        return self._make(*fields, known) if type(fields) is tuple else self._make(fields, known)


class RecordSerde:
    """All types of records of one topic.

    A record is written in the format of its class, or of `kind_of(record)`. The value of a record
    is the last field of its class.
    """

    def __init__(
        self,
        topic: str,
        formats: Iterable[RecordFormat],
        *,
        kind_of: Callable[[Any], type] = type,
    ) -> None:
        self._topic = topic
        self._kind_of = kind_of
        self._by_kind: dict[type, RecordFormat] = {}
        self._by_type: dict[int, RecordFormat] = {}
        for one in formats:
            self._by_kind.update(dict.fromkeys(one.kinds, one))
            self._by_type.update(dict.fromkeys(one.types, one))
        # By kind and version: encoder of the key, getter of the value, encoder of the value.
        self._encoders: dict[tuple[type, int | None], tuple[Encode, Convert, Encode]] = {}

    def encode(self, record: msgspec.Struct, version: int | None = None) -> Entry:
        """Key and value in the log, the value in `version` or (None) in its newest version.

        ProtocolError if a text is too long for its field.
        """
        kind = self._kind_of(record), version
        encode_key, value_of, encode_value = self._encoders.get(kind) or self._compile(kind, record)
        try:
            value = value_of(record)
            return encode_key(record), None if value is None else encode_value(value)
        except struct.error as error:
            raise ProtocolError(f"a text or number fits into no record: {error}") from error

    def _compile(
        self, kind: tuple[type, int | None], record: msgspec.Struct
    ) -> tuple[Encode, Convert, Encode]:
        known = self._by_kind[kind[0]]
        value_of = attrgetter(record.__struct_fields__[-1])
        encoders = self._encoders[kind] = (
            known.key_encoder(),
            value_of,
            known.value.encoder(kind[1]),
        )
        return encoders

    def decode(self, key: bytes, value: bytes | None) -> Any:  # noqa: ANN401 - any of the records
        """The inverse of `encode`, for all versions; None for types that are not in the table."""
        try:
            known = self._by_type.get(_INT16.unpack_from(key)[0])
            return None if known is None else known.decode(key, value)
        except (struct.error, IndexError, ValueError, msgspec.MsgspecError) as error:
            raise ProtocolError(f"a record of {self._topic} is malformed: {error}") from error


def _composed(encode: Encode, first: Convert | None) -> Encode:
    return encode if first is None else lambda value: encode(first(value))


def _from_attributes(value_class: type[msgspec.Struct]) -> Convert:
    return lambda read: msgspec.convert(read, value_class, from_attributes=True)
