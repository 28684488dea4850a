"""Compiles one decoder for each (message, version): straight code without dispatch.

From the decoder of Produce v12, where n7 partitions of a topic are read:

    o9 = new(PartitionProduceData)
    o9.index, n10 = read_iB(data, pos)
    start = pos + 5
    if n10 > 127: n10, start = finish_uvarint(data, start, n10)
    if not n10: o9.records = None; pos = start
    else: pos = start + n10 - 1; o9.records = data[start:pos]

Adjacent fields of fixed size are read by one `Struct`, together with the length after them: of a
compact length the first byte, as lengths of 128 and more are rare. Bounds are not checked for each
field: a slice beyond the end is short, the position is then behind the end, and the next read or
the check at the end fails. Each element of an array therefore needs at least one byte of input, and
a large count or length allocates nothing by itself. The number of elements is limited too, because
an empty string takes a hundred times as much memory as input.

A decoder of large messages is the same code as a generator: it yields after every
SLICE_ELEMENTS, so that its caller can serve others.

Messages without records are decoded from a `bytes` copy of the frame, which is faster to index than
a memoryview. Messages with records are decoded from the view, and the records are slices of it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from struct import Struct, calcsize, error
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
from odradek.protocol.source_writer import SourceWriter

Decoder = Callable[[bytes | bytearray | memoryview, int], object]
SlicedDecoder = Callable[[bytes | bytearray | memoryview, int], Generator[None, None, object]]

MALFORMED: Final = (error, IndexError, UnicodeDecodeError)
"""What a decoder raises on malformed bytes, besides ProtocolError."""

_UUID_SIZE: Final = 16


def refuse_end(message: str, excess: int) -> None:
    """Bytes are missing, or other bytes follow."""
    raise ProtocolError(f"{message} is {'truncated' if excess > 0 else 'followed by other bytes'}")


def refuse_count() -> NoReturn:
    """The arrays of one message have more elements than allowed."""
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

    On malformed bytes it raises ProtocolError or one of MALFORMED. With `may_trail` other bytes may
    follow the message. All arrays have at most `elements_max` elements together.
    """
    source = _DecoderSource(
        version, flexible=flexible, views=has_records(struct_class), elements_max=elements_max
    )
    source.message(struct_class, may_trail=may_trail)
    what = f"decoder of {struct_class.__name__} v{version}"
    return cast("Decoder", source.compile("decode", "data, pos", what))


def compile_sliced_decoder(
    struct_class: type,
    version: int,
    *,
    flexible: bool,
    may_trail: bool = False,
    elements_max: int | None = None,
) -> SlicedDecoder:
    """As `compile_decoder`, but a generator function: it yields after every SLICE_ELEMENTS, and
    returns the message."""
    source = _DecoderSource(
        version,
        flexible=flexible,
        views=has_records(struct_class),
        elements_max=elements_max,
        is_sliced=True,
    )
    source.message(struct_class, may_trail=may_trail)
    what = f"sliced decoder of {struct_class.__name__} v{version}"
    return cast("SlicedDecoder", source.compile("decode", "data, pos", what))


class _DecoderSource(SourceWriter):
    """The source of one decoder."""

    def __init__(
        self,
        version: int,
        *,
        flexible: bool,
        views: bool,
        elements_max: int | None,
        is_sliced: bool = False,
    ) -> None:
        super().__init__(
            finish_uvarint=finish_uvarint,
            new=object.__new__,
            read_uvarint=read_uvarint,
            refuse_count=refuse_count,
            refuse_end=refuse_end,
            refuse_null=refuse_null,
            refuse_tag_size=refuse_tag_size,
            skip_tags=skip_tags,
        )
        self._version = version
        self._flexible = flexible
        self._views = views
        self._elements_max = elements_max
        self._is_sliced = is_sliced
        # Values of fixed size that are read together, in wire order: (struct code, target).
        self._run: list[tuple[str, str]] = []

    def message(self, struct_class: type, *, may_trail: bool) -> None:
        """The whole body of the decoder."""
        self.emit("end = len(data)" if self._views else "data = bytes(data); end = len(data)")
        if self._elements_max is not None:
            self.emit(f"left = {self._elements_max}")
        if self._is_sliced:
            self.begin_slices()
        message = self._struct(struct_class)
        self._end_run()
        excess = f"refuse_end({struct_class.__name__!r}, pos - end)"
        self.emit(f"if pos {'>' if may_trail else '!='} end: {excess}")
        self.emit(f"return {message}")
        if self._is_sliced:
            self.emit("yield")  # a generator, also of a message without arrays

    def _end_run(self, *, into: str = "pos") -> None:
        """Read the collected run; `into` becomes the position behind it."""
        if not self._run:
            return
        codes = "".join(code for code, _ in self._run)
        targets = ", ".join(target for _, target in self._run)
        if codes == "B":
            self.emit(f"{targets} = data[pos]")
        else:
            reader = "read_" + codes.replace("?", "x")
            self.names[reader] = Struct(">" + codes).unpack_from
            self.emit(f"{targets}{',' if len(self._run) == 1 else ''} = {reader}(data, pos)")
        size = calcsize(">" + codes)
        self.emit(f"pos += {size}" if into == "pos" else f"{into} = pos + {size}")
        self._run.clear()

    def _struct(self, struct_class: type) -> str:
        """Read a struct into the variable returned; its last fixed-size fields may still be in the
        run."""
        self.names[struct_class.__name__] = struct_class
        holder = self.fresh("o")
        self.emit(f"{holder} = new({struct_class.__name__})")
        tagged = []
        for field in fields_of(struct_class):
            target = f"{holder}.{field.name}"
            present = field.is_in(self._version)
            if present and field.tag is None:
                self._value(field, target)
            else:
                self._default(field, target)
                if present:
                    tagged.append(field)
        if self._flexible:
            self._tags(tagged, holder)
        return holder

    def _default(self, field: Field, target: str) -> None:
        if field.default == () and field.kind is FieldKind.STRUCT:
            element = cast("type", field.element)
            self.names[element.__name__] = element
            self.emit(f"{target} = {element.__name__}()")
        elif field.default == ():
            self.emit(f"{target} = []")
        elif isinstance(field.default, memoryview):
            self.emit(f"{target} = memoryview(b'')")
        else:
            self.emit(f"{target} = {field.default!r}")

    def _tags(self, tagged: list[Field], holder: str) -> None:
        count = self.fresh("t")
        self._run.append(("B", count))
        self._end_run()
        if not tagged:
            self.emit(f"if {count}: pos = skip_tags(data, pos, {count})")
            return
        tag, size, stop = self.fresh("tag"), self.fresh("size"), self.fresh("stop")
        with self.block(f"if {count}:"):
            self.emit(f"if {count} > 127: {count}, pos = finish_uvarint(data, pos, {count})")
            with self.block(f"for _ in range({count}):"):
                self.emit(f"{tag}, pos = read_uvarint(data, pos)")
                self.emit(f"{size}, pos = read_uvarint(data, pos)")
                self.emit(f"{stop} = pos + {size}")
                for field in tagged:
                    with self.block(f"if {tag} == {field.tag}:"):
                        self._value(field, f"{holder}.{field.name}")
                        self._end_run()
                        self.emit(f"if pos != {stop}: refuse_tag_size({field.name!r})")
                self.emit(f"pos = {stop}")

    def _value(self, field: Field, target: str) -> None:
        if field.kind in FIXED_SIZE:
            self._run.append((field.kind.value, target))
        elif field.kind is FieldKind.STRUCT:
            self._nested(field, target)
        elif field.kind is FieldKind.ARRAY:
            self._array(field, target)
        else:
            self._sized(field, target)

    def _sized(self, field: Field, target: str) -> None:
        """A string, bytes or records: a length and so many bytes."""
        value = "data[start:pos]"
        if field.kind is FieldKind.STRING:
            value = f'str({value}, "utf-8")' if self._views else f"{value}.decode()"
        elif field.kind is FieldKind.BYTES and self._views:
            value = f"bytes({value})"
        length = self.fresh("n")
        if self._flexible:
            self._run.append(("B", length))
            self._end_run(into="start")
            self.emit(f"if {length} > 127: {length}, start = finish_uvarint(data, start, {length})")
            is_null, stop = f"not {length}", f"start + {length} - 1"
        else:
            self._run.append(("h" if field.kind is FieldKind.STRING else "i", length))
            self._end_run(into="start")
            is_null, stop = f"{length} < 0", f"start + {length}"
        if field.is_nullable(self._version):
            self.emit(f"if {is_null}: {target} = None; pos = start")
            self.emit(f"else: pos = {stop}; {target} = {value}")
        else:
            self.emit(f"if {is_null}: refuse_null({field.name!r})")
            self.emit(f"pos = {stop}")
            self.emit(f"{target} = {value}")

    def _nested(self, field: Field, target: str) -> None:
        struct_class = cast("type", field.element)
        if not field.is_nullable(self._version):
            self.emit(f"{target} = {self._struct(struct_class)}")
            return
        # A nullable struct begins with a byte, which is negative for null.
        presence = self.fresh("n")
        self._run.append(("b", presence))
        self._end_run()
        self.emit(f"if {presence} < 0: {target} = None")
        with self.block("else:"):
            holder = self._struct(struct_class)
            self._end_run()
            self.emit(f"{target} = {holder}")

    def _array(self, field: Field, target: str) -> None:
        count = self.fresh("n")
        self._run.append(("B" if self._flexible else "i", count))
        self._end_run()
        if self._flexible:
            self.emit(f"if {count} > 127: {count}, pos = finish_uvarint(data, pos, {count})")
            self.emit(f"{count} -= 1")
        if field.is_nullable(self._version):
            self.emit(f"if {count} < 0: {target} = None")
        else:
            self.emit(f"if {count} < 0: refuse_null({field.name!r})")
        self.emit(f"elif {count} == 0: {target} = []")
        with self.block("else:"):
            if self._elements_max is not None:
                self.emit(f"left -= {count}")
                self.emit("if left < 0: refuse_count()")
            if field.element is FieldKind.UUID:
                self.emit(f"start = pos; pos += {_UUID_SIZE} * {count}")
                self.emit("if pos > end: refuse_end('an array', pos - end)")
                step = f"range(start, pos, {_UUID_SIZE})"
                self.emit(f"{target} = [bytes(data[at:at + {_UUID_SIZE}]) for at in {step}]")
            elif field.element in FIXED_SIZE:
                # A count beyond the end fails in `unpack_from` before anything is allocated.
                structs = self.array_structs(field.element)
                self.emit(f"{target} = list({structs}[{count}].unpack_from(data, pos))")
                self.emit(f"pos += {calcsize('>' + field.element.value)} * {count}")
            else:
                self._elements(field.element, count, target)

    def _elements(self, element: type | FieldKind | None, count: str, target: str) -> None:
        """An array of structs or of strings."""
        items = self.fresh("l")
        self.emit(f"{items} = []")
        with self.block(f"for _ in range({count}):"):
            if isinstance(element, type):
                item = self._struct(element)
            else:
                item = self.fresh("v")
                kind = cast("FieldKind", element)
                self._sized(Field(kind=kind, default=None, name="an element"), item)
            self._end_run()
            self.emit(f"{items}.append({item})")
            if self._is_sliced:
                self.end_slice()
        self.emit(f"{target} = {items}")
