"""Compiles one encoder for each (message, version), the counterpart of `decoding`.

An encoder computes the pieces of a message and joins them. From that of an OffsetCommit key:

    v2 = o1.group_id.encode()
    n3 = len(v2)
    v4 = o1.topic.encode()
    n5 = len(v4)
    return b"".join((b"\\0\\1", write_h(n3), v2, write_h(n5), v4, write_i(o1.partition)))

Adjacent values of fixed size are packed by one `Struct`, together with the length of the string or
array after them. Only loops append to a list. Record buffers are neither joined nor copied: the
pieces before them become one buffer, and they follow as they are.

An encoder of large messages is the same code as a generator: it yields after every SLICE_ELEMENTS
elements, so that its caller can serve others, and joins the pieces so far into a buffer.

An encoder reads its message and keeps nothing of it. A field that the version lacks is left out if
it is ignorable or holds its default, and refused otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from struct import Struct, calcsize
from typing import Final, cast

from odradek.protocol.primitives import refuse_value, uvarint
from odradek.protocol.schema import FIXED_SIZE, Field, FieldKind, fields_of, has_records
from odradek.protocol.source_writer import SourceWriter

Encoder = Callable[[object], list[bytes | memoryview]]
SlicedEncoder = Callable[[object], Generator[None, None, list[bytes | memoryview]]]

_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(128))


def compile_encoder(struct_class: type, version: int, *, flexible: bool) -> Encoder:
    """A function of a message that returns the buffers to send, in order.

    It raises ProtocolError if the version cannot represent the message, and the errors of `struct`
    and of attribute access if a field holds a value of the wrong type.
    """
    source = _EncoderSource(version, flexible=flexible)
    if has_records(struct_class):
        source.emit("buffers = []")
        source.emit(f"rest = {source.message(struct_class)}")
        source.emit("if rest: buffers.append(rest)")
        source.emit("return buffers")
    else:
        source.emit(f"return [{source.message(struct_class)}]")
    what = f"encoder of {struct_class.__name__} v{version}"
    return cast("Encoder", source.compile("encode", "message", what))


def compile_sliced_encoder(struct_class: type, version: int, *, flexible: bool) -> SlicedEncoder:
    """As `compile_encoder`, but a generator function: it yields after every SLICE_ELEMENTS, and
    returns the buffers. The message must not change meanwhile."""
    source = _EncoderSource(version, flexible=flexible, is_sliced=True)
    source.emit("buffers = []")
    source.begin_slices()
    source.emit(f"rest = {source.message(struct_class)}")
    source.emit("if rest: buffers.append(rest)")
    source.emit("return buffers")
    source.emit("yield")  # a generator, also of a message without arrays
    what = f"sliced encoder of {struct_class.__name__} v{version}"
    return cast("SlicedEncoder", source.compile("encode", "message", what))


def compile_record_encoder(
    struct_class: type, version: int, *, flexible: bool, prefix: bytes = b""
) -> Callable[[object], bytes]:
    """A function of a message without records that returns `prefix` and the message as bytes."""
    source = _EncoderSource(version, flexible=flexible)
    source.emit(f"return {source.message(struct_class, prefix)}")
    what = f"record encoder of {struct_class.__name__} v{version}"
    return cast("Callable[[object], bytes]", source.compile("encode", "message", what))


class _EncoderSource(SourceWriter):
    """The source of one encoder."""

    def __init__(self, version: int, *, flexible: bool, is_sliced: bool = False) -> None:
        super().__init__(
            one_buffer=(bytes, memoryview),
            one_byte=_ONE_BYTE,
            refuse_value=refuse_value,
            uvarint=uvarint,
        )
        self._version = version
        self._flexible = flexible
        self._is_sliced = is_sliced
        # Values of fixed size that are packed together, as (struct code, expression). A byte that
        # is always zero is a pad byte without expression.
        self._run: list[tuple[str, str]] = []
        # The expressions of the pieces before the run.
        self._pieces: list[str] = []
        # The variable of the list that has the pieces before those, and whether there are any.
        self._parts = ""
        self._has_parts = False
        # How many lists of pieces are unfinished: 1 for that of the message.
        self._depth = 0

    def message(self, struct_class: type, prefix: bytes = b"") -> str:
        """Write the encoding of the parameter `message`. Returns an expression for its bytes; those
        up to the last record buffers are in `buffers` by then."""

        def write() -> None:
            if prefix:
                self._pieces.append(repr(prefix))
            self._struct(struct_class, "message")

        return self._bytes_of(write)

    def _bytes_of(self, write: Callable[[], None]) -> str:
        """An expression for the bytes of all that `write` writes."""
        outer = self._run, self._pieces, self._parts, self._has_parts
        self._run, self._pieces, self._parts, self._has_parts = [], [], self.fresh("parts"), False
        self._depth += 1
        start = len(self.lines)
        write()
        self._end_run()
        self._depth -= 1
        if self._has_parts:
            self._store()
            self.lines.insert(start, f"{self.indentation}{self._parts} = []")
            joined = f'b"".join({self._parts})'
        elif len(self._pieces) == 1:
            joined = self._pieces[0]
        else:
            joined = f'b"".join(({", ".join(self._pieces)}))'
        self._run, self._pieces, self._parts, self._has_parts = outer
        return joined

    def _store(self) -> None:
        """Put the pieces so far into the list: a loop follows, or record buffers."""
        self._end_run()
        if len(self._pieces) == 1:
            self.emit(f"{self._parts}.append({self._pieces[0]})")
        elif self._pieces:
            self.emit(f"{self._parts} += ({', '.join(self._pieces)})")
        self._pieces.clear()
        self._has_parts = True

    def _flush(self) -> str:
        """A statement that makes a buffer of the pieces so far, if they are those of the message
        and not of a tagged field, whose size comes before it."""
        if self._depth > 1:
            return ""
        return f'buffers.append(b"".join({self._parts})); {self._parts}.clear(); '

    def _end_run(self) -> None:
        if self._run:
            self._pieces.append(self._packed(self._run))
            self._run.clear()

    def _packed(self, run: list[tuple[str, str]]) -> str:
        codes = "".join(code for code, _ in run)
        if not codes.strip("x"):
            return repr(bytes(len(codes)))
        writer = "write_" + codes.replace("?", "t")
        self.names[writer] = Struct(">" + codes).pack
        return f"{writer}({', '.join(value for code, value in run if code != 'x')})"

    def _length(self, length: str, code: str = "i") -> None:
        """A length: a varint if it is compact, otherwise of the struct code."""
        if not self._flexible:
            self._run.append((code, length))
        elif self._run:
            short, long = self._packed([*self._run, ("B", length)]), self._packed(self._run)
            self._pieces.append(f"{short} if {length} < 128 else {long} + uvarint({length})")
            self._run.clear()
        else:
            self._pieces.append(f"one_byte[{length}] if {length} < 128 else uvarint({length})")

    def _struct(self, struct_class: type, holder: str) -> None:
        tagged = []
        for field in fields_of(struct_class):
            value = f"{holder}.{field.name}"
            if not field.is_in(self._version):
                if not field.ignorable:
                    refusal = f"refuse_value({field.name!r}, {self._version})"
                    self.emit(f"if {self._differs(field, value)}: {refusal}")
            elif field.tag is None:
                self._value(field, value)
            else:
                tagged.append((field.tag, field, value))
        if tagged:
            self._tags(sorted(tagged, key=lambda entry: entry[0]))
        elif self._flexible:
            self._run.append(("x", ""))

    def _differs(self, field: Field, value: str) -> str:
        """The condition that a field does not hold its default."""
        if field.kind is FieldKind.ARRAY:
            return (
                f"{value} is not None" if field.default is None else f"{value} or {value} is None"
            )
        if field.kind is FieldKind.STRUCT:
            element = cast("type", field.element)
            self.names[element.__name__] = element
            differs = f"{value} != {element.__name__}()"
            return f"{value} is not None and {differs}" if field.default is None else differs
        if field.default is None:
            return f"{value} is not None"
        return f"{value} != {field.default!r}"

    def _tags(self, tagged: list[tuple[int, Field, str]]) -> None:
        """The section of tagged fields: their count, and those that differ from their default."""
        conditions = [f"({self._differs(field, value)})" for _, field, value in tagged]

        def write() -> None:
            if len(tagged) == 1:
                self._run.append(("B", "1"))
                self._tag(*tagged[0])
                return
            self._run.append(("B", " + ".join(f"bool{condition}" for condition in conditions)))
            for entry, condition in zip(tagged, conditions, strict=True):
                self._optional(condition, b"", partial(self._tag, *entry))

        self._optional(" or ".join(conditions), b"\0", write)

    def _optional(self, condition: str, absent: bytes, write: Callable[[], None]) -> None:
        """What `write` writes if the condition holds, and these constant bytes otherwise."""
        content = self.fresh("c")
        self.emit(f"{content} = {absent!r}")
        with self.block(f"if {condition}:"):
            self.emit(f"{content} = {self._bytes_of(write)}")
        self._end_run()
        self._pieces.append(content)

    def _tag(self, tag: int, field: Field, value: str) -> None:
        """One tagged field: its number, its size and its value."""
        if field.kind in FIXED_SIZE:
            head = uvarint(tag) + uvarint(calcsize(field.kind.value))
            self._run += ((f"{len(head)}s", repr(head)), (field.kind.value, value))
            return
        content = self.fresh("v")
        self.emit(f"{content} = {self._bytes_of(partial(self._value, field, value))}")
        self._run.append(("B", str(tag)))
        self._length(f"len({content})")
        self._end_run()
        self._pieces.append(content)

    def _value(self, field: Field, value: str) -> None:
        if field.kind in FIXED_SIZE:
            self._run.append((field.kind.value, value))
        elif field.kind is FieldKind.STRUCT:
            self._nested(field, value)
        elif field.kind is FieldKind.ARRAY:
            self._array(field, value)
        elif field.kind is FieldKind.RECORDS:
            self._records(field, value)
        else:
            self._sized(field.kind, value, nullable=field.is_nullable(self._version))

    def _sized(self, kind: FieldKind, value: str, *, nullable: bool) -> None:
        """A string or bytes: a length and so many bytes."""
        content, length = self.fresh("v"), self.fresh("n")
        encode = ".encode()" if kind is FieldKind.STRING else ""
        null, size = ("0", f"len({content}) + 1") if self._flexible else ("-1", f"len({content})")
        if nullable:
            self.emit(f"{content} = {value}")
            self.emit(f'if {content} is None: {content} = b""; {length} = {null}')
            again = f"{content} = {content}{encode}; " if encode else ""
            self.emit(f"else: {again}{length} = {size}")
        else:
            self.emit(f"{content} = {value}{encode}")
            self.emit(f"{length} = {size}")
        self._length(length, "h" if kind is FieldKind.STRING else "i")
        self._end_run()
        self._pieces.append(content)

    def _records(self, field: Field, value: str) -> None:
        content, length = self.fresh("v"), self.fresh("n")
        self.emit(f"{content} = {value}")
        if field.is_nullable(self._version):
            self.emit(f"if {content} is None: {content} = (); {length} = -1")
            self.emit(f"elif isinstance({content}, one_buffer):")
        else:
            self.emit(f"if isinstance({content}, one_buffer):")
        self.emit(f" {length} = len({content}); {content} = ({content},)")
        self.emit(f"else: {length} = sum(map(len, {content}))")
        if self._flexible:
            self.emit(f"{length} += 1")
        self._length(length)
        self._store()
        with self.block(f"if {length} > {int(self._flexible)}:"):
            self.emit(f'buffers.append(b"".join({self._parts})); {self._parts}.clear()')
            self.emit(f"buffers.extend({content})")

    def _nested(self, field: Field, value: str) -> None:
        struct_class = cast("type", field.element)
        holder = self.fresh("o")
        self.emit(f"{holder} = {value}")
        if not field.is_nullable(self._version):
            self._struct(struct_class, holder)
            return

        def write() -> None:
            self._run.append(("b", "1"))
            self._struct(struct_class, holder)

        # A nullable struct begins with a byte: -1 for null, 1 for a struct that follows.
        self._optional(f"{holder} is not None", b"\xff", write)

    def _array(self, field: Field, value: str) -> None:
        items, length = self.fresh("l"), self.fresh("n")
        self.emit(f"{items} = {value}")
        null, size = ("0", f"len({items}) + 1") if self._flexible else ("-1", f"len({items})")
        if field.is_nullable(self._version):
            self.emit(f"if {items} is None: {items} = (); {length} = {null}")
            self.emit(f"else: {length} = {size}")
        else:
            self.emit(f"{length} = {size}")
        self._length(length)
        if field.element is FieldKind.UUID:
            self._end_run()
            self._pieces.append(f'b"".join({items})')
        elif field.element in FIXED_SIZE:
            self._end_run()
            self._pieces.append(f"{self.array_structs(field.element)}[len({items})].pack(*{items})")
        else:
            self._store()
            item = self.fresh("o")
            with self.block(f"for {item} in {items}:"):
                if isinstance(field.element, type):
                    self._struct(field.element, item)
                else:
                    self._sized(cast("FieldKind", field.element), item, nullable=False)
                self._store()
                if self._is_sliced:
                    self.end_slice(self._flush())
