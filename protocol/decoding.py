"""Writes and compiles one decoder per (message, version): straight code without dispatch.

From the decoder of Produce v12, where n7 partitions of a topic are read:

    o9 = new(PartitionProduceData)
    o9.index, n10 = read_iB(data, pos)
    start = pos + 5
    if n10 > 127: n10, start = finish_uvarint(data, start, n10)
    if not n10: o9.records = None; pos = start
    else: pos = start + n10 - 1; o9.records = data[start:pos]

Two ideas make it fast. Neighbouring fields of fixed size are read by one `Struct`, together with
the length that follows them: a compact length is read as its first byte, and only one of 128 or
more takes a detour. And nothing is checked twice: a slice beyond the end is merely short, the
position then lies behind the end, so that the next read fails or the check at the very end does.
Hence every element of an array costs at least a byte of input, and a hostile count or length
allocates nothing that the input does not pay for. How many elements may be made at all is counted
by the array, as one that is full of empty strings takes a hundred times its size.

Messages without records are decoded from a `bytes` copy of the frame, which is faster to index
than a view; messages with records from the view itself, and the records stay slices of it.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct, calcsize, error, unpack_from
from typing import Final, NoReturn, cast

from odradek.protocol.errors import ProtocolError
from odradek.protocol.primitives import (
    finish_uvarint,
    read_uvarint,
    refuse_null,
    refuse_tag_size,
    skip_tags,
)
from odradek.protocol.schema import FIXED_SIZE, Field, FieldKind, fields_of, has_records

Decoder = Callable[[bytes | bytearray | memoryview, int], object]

MALFORMED: Final = (error, IndexError, UnicodeDecodeError)
"""What a decoder raises on malformed bytes, besides ProtocolError."""

_UUID_SIZE: Final = 16


def refuse_end(message: str, excess: int) -> None:
    """Bytes are missing, or left over where none may be."""
    raise ProtocolError(f"{message} is {'truncated' if excess > 0 else 'followed by other bytes'}")


def refuse_count() -> NoReturn:
    """Arrays that are to hold more than may be made of one message."""
    raise ProtocolError("the arrays of the request have too many elements")


def compile_decoder(
    struct_class: type,
    version: int,
    *,
    flexible: bool,
    may_trail: bool = False,
    elements_max: int | None = None,
) -> Decoder:
    """A function of (buffer, position of the body) that returns a new `struct_class`.

    It raises ProtocolError, IndexError, struct.error or UnicodeDecodeError on bytes that are no
    such message; with `may_trail` it accepts bytes behind it. Arrays of structs and of strings have
    at most `elements_max` elements together.
    """
    views = has_records(struct_class)
    source = DecoderSource(version, flexible=flexible, views=views, elements_max=elements_max)
    text = source.write(struct_class, may_trail=may_trail)
    code = compile(text, f"<decoder of {struct_class.__name__} v{version}>", "exec")
    exec(code, source.names)
    return cast("Decoder", source.names["decode"])


class DecoderSource:
    """The text of one decoder while it is being written, and the names it uses."""

    def __init__(
        self, version: int, *, flexible: bool, views: bool, elements_max: int | None = None
    ) -> None:
        self.version = version
        self.elements_max = elements_max
        self.flexible = flexible
        self.views = views
        self.names: dict[str, object] = {
            "ProtocolError": ProtocolError,
            "finish_uvarint": finish_uvarint,
            "new": object.__new__,
            "read_uvarint": read_uvarint,
            "refuse_count": refuse_count,
            "refuse_end": refuse_end,
            "refuse_null": refuse_null,
            "refuse_tag_size": refuse_tag_size,
            "skip_tags": skip_tags,
            "unpack_from": unpack_from,
        }
        self._lines: list[str] = []
        self._depth = 1
        self._serial = 0
        # Fixed-size values that are read together: (struct code, target), in wire order.
        self._run: list[tuple[str, str]] = []

    def write(self, struct_class: type, *, may_trail: bool) -> str:
        """The source of `decode(data, pos)`."""
        self._emit("end = len(data)" if self.views else "data = bytes(data); end = len(data)")
        if self.elements_max is not None:
            self._emit(f"left = {self.elements_max}")
        message = self._struct(struct_class)
        self._flush()
        with_excess = f"refuse_end({struct_class.__name__!r}, pos - end)"
        self._emit(f"if pos {'>' if may_trail else '!='} end: {with_excess}")
        self._emit(f"return {message}")
        return "\n".join(["def decode(data, pos):", *self._lines])

    def _emit(self, line: str) -> None:
        self._lines.append(" " * self._depth + line)

    def _fresh(self, prefix: str) -> str:
        self._serial += 1
        return f"{prefix}{self._serial}"

    def _flush(self, *, into: str = "pos") -> None:
        """Read the collected run; `into` becomes the position behind it."""
        codes = "".join(code for code, _ in self._run)
        targets = ", ".join(target for _, target in self._run)
        if not codes:
            if into != "pos":
                self._emit(f"{into} = pos")
            return
        if codes == "B":
            self._emit(f"{targets} = data[pos]")
        else:
            reader = "read_" + codes.replace("?", "x")
            self.names[reader] = Struct(">" + codes).unpack_from
            self._emit(f"{targets}{',' if len(self._run) == 1 else ''} = {reader}(data, pos)")
        size = calcsize(">" + codes)
        self._emit(f"pos += {size}" if into == "pos" else f"{into} = pos + {size}")
        self._run.clear()

    def _struct(self, struct_class: type) -> str:
        """Write the reading of a struct; its last fixed-size fields may still be in the run."""
        self.names[struct_class.__name__] = struct_class
        holder = self._fresh("o")
        self._emit(f"{holder} = new({struct_class.__name__})")
        tagged = []
        for field in fields_of(struct_class):
            target = f"{holder}.{field.name}"
            present = field.is_in(self.version)
            if present and field.tag is None:
                self._value(field, target)
            else:
                self._default(field, target)
                if present:
                    tagged.append(field)
        if self.flexible:
            self._tags(tagged, holder)
        return holder

    def _default(self, field: Field, target: str) -> None:
        if field.default == ():
            if field.kind is FieldKind.ARRAY:
                self._emit(f"{target} = []")
                return
            element = cast("type", field.element)
            self.names[element.__name__] = element
            self._emit(f"{target} = {element.__name__}()")
        elif isinstance(field.default, memoryview):
            self._emit(f"{target} = memoryview(b'')")
        else:
            self._emit(f"{target} = {field.default!r}")

    def _tags(self, tagged: list[Field], holder: str) -> None:
        count = self._fresh("t")
        self._run.append(("B", count))
        self._flush()
        if not tagged:
            self._emit(f"if {count}: pos = skip_tags(data, pos, {count})")
            return
        tag, size, stop = self._fresh("tag"), self._fresh("size"), self._fresh("stop")
        self._emit(f"if {count}:")
        self._depth += 1
        self._emit(f"if {count} > 127: {count}, pos = finish_uvarint(data, pos, {count})")
        self._emit(f"for _ in range({count}):")
        self._depth += 1
        self._emit(f"{tag}, pos = read_uvarint(data, pos)")
        self._emit(f"{size}, pos = read_uvarint(data, pos)")
        self._emit(f"{stop} = pos + {size}")
        for field in tagged:
            self._emit(f"if {tag} == {field.tag}:")
            self._depth += 1
            self._value(field, f"{holder}.{field.name}")
            self._flush()
            self._emit(f"if pos != {stop}: refuse_tag_size({field.name!r})")
            self._depth -= 1
        self._emit(f"pos = {stop}")
        self._depth -= 2

    def _value(self, field: Field, target: str) -> None:
        if field.kind in FIXED_SIZE:
            self._run.append((field.kind.value, target))
        elif field.kind is FieldKind.STRUCT:
            self._nested(field, target)
        elif field.kind is FieldKind.ARRAY:
            self._array(field, target)
        else:
            self._sized(field, target, self._slice(field.kind))

    def _slice(self, kind: FieldKind) -> str:
        if kind is FieldKind.STRING:
            return 'str(data[start:pos], "utf-8")' if self.views else "data[start:pos].decode()"
        if kind is FieldKind.BYTES and self.views:
            return "bytes(data[start:pos])"
        return "data[start:pos]"

    def _sized(self, field: Field, target: str, value: str) -> None:
        """A string, bytes or records: a length and so many bytes."""
        length = self._fresh("n")
        nullable = field.is_nullable(self.version)
        if self.flexible:
            self._run.append(("B", length))
            self._flush(into="start")
            self._emit(
                f"if {length} > 127: {length}, start = finish_uvarint(data, start, {length})"
            )
            is_null, stop = f"not {length}", f"start + {length} - 1"
        else:
            self._run.append(("h" if field.kind is FieldKind.STRING else "i", length))
            self._flush(into="start")
            is_null, stop = f"{length} < 0", f"start + {length}"
        if nullable:
            self._emit(f"if {is_null}: {target} = None; pos = start")
            self._emit(f"else: pos = {stop}; {target} = {value}")
        else:
            self._emit(f"if {is_null}: refuse_null({field.name!r})")
            self._emit(f"pos = {stop}")
            self._emit(f"{target} = {value}")

    def _nested(self, field: Field, target: str) -> None:
        struct_class = cast("type", field.element)
        # A nullable struct is led by a byte: negative for null.
        if not field.is_nullable(self.version):
            self._emit(f"{target} = {self._struct(struct_class)}")
            return
        presence = self._fresh("n")
        self._run.append(("b", presence))
        self._flush()
        self._emit(f"if {presence} < 0: {target} = None")
        self._emit("else:")
        self._depth += 1
        holder = self._struct(struct_class)
        self._flush()
        self._emit(f"{target} = {holder}")
        self._depth -= 1

    def _array(self, field: Field, target: str) -> None:
        count = self._fresh("n")
        if self.flexible:
            self._run.append(("B", count))
            self._flush()
            self._emit(f"if {count} > 127: {count}, pos = finish_uvarint(data, pos, {count})")
            self._emit(f"{count} -= 1")
        else:
            self._run.append(("i", count))
            self._flush()
        if field.is_nullable(self.version):
            self._emit(f"if {count} < 0: {target} = None")
        else:
            self._emit(f"if {count} < 0: refuse_null({field.name!r})")
        self._emit(f"elif {count} == 0: {target} = []")
        self._emit("else:")
        self._depth += 1
        if isinstance(field.element, type):
            items = self._loop(count)
            item = self._struct(field.element)
            self._flush()
            self._emit(f"{items}.append({item})")
            self._depth -= 1
            self._emit(f"{target} = {items}")
        else:
            self._scalars(cast("FieldKind", field.element), count, target)
        self._depth -= 1

    def _loop(self, count: str) -> str:
        items = self._fresh("l")
        if self.elements_max is not None:
            self._emit(f"left -= {count}")
            self._emit("if left < 0: refuse_count()")
        self._emit(f"{items} = []")
        self._emit(f"for _ in range({count}):")
        self._depth += 1
        return items

    def _scalars(self, kind: FieldKind, count: str, target: str) -> None:
        if kind is FieldKind.UUID:
            self._emit(f"start = pos; pos += {_UUID_SIZE} * {count}")
            self._emit("if pos > end: refuse_end('an array', pos - end)")
            step = f"range(start, pos, {_UUID_SIZE})"
            self._emit(f"{target} = [bytes(data[at:at + {_UUID_SIZE}]) for at in {step}]")
        elif kind in FIXED_SIZE:
            # A count beyond the end is refused by `struct` before it makes anything.
            self._emit(f'{target} = list(unpack_from(f">{{{count}}}{kind.value}", data, pos))')
            self._emit(f"pos += {calcsize('>' + kind.value)} * {count}")
        else:
            items = self._loop(count)
            item = self._fresh("v")
            self._sized(Field(kind=kind, default=None, name="an element"), item, self._slice(kind))
            self._emit(f"{items}.append({item})")
            self._depth -= 1
            self._emit(f"{target} = {items}")
