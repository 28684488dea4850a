"""Writes and compiles one encoder per (message, version), the counterpart of `decoding`.

An encoder collects small pieces and joins them once at the end. Neighbouring fields of fixed size
are packed by one `Struct`, together with the length of the string or array behind them; a compact
length of 128 or more and a tagged section with something in it take a detour. Record buffers are
never joined or copied: the pieces before them become one buffer, they follow as they are.

An encoder reads its message and keeps nothing of it. What a version has no field for is left out
if the field is ignorable or holds its default, and refused otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct, calcsize, pack
from typing import cast

from odradek.protocol.primitives import refuse_value, uvarint
from odradek.protocol.schema import FIXED_SIZE, Field, FieldKind, fields_of, has_records

Encoder = Callable[[object], list[bytes | memoryview]]


def compile_encoder(struct_class: type, version: int, *, flexible: bool) -> Encoder:
    """A function of a message that returns the buffers to send, in order.

    It raises ProtocolError where the version cannot carry what the message says, and the errors
    of `struct` and of attribute access where a field holds a value of the wrong type.
    """
    source = EncoderSource(version, flexible=flexible, split=has_records(struct_class))
    text = source.write(struct_class)
    code = compile(text, f"<encoder of {struct_class.__name__} v{version}>", "exec")
    exec(code, source.names)
    return cast("Encoder", source.names["encode"])


def compile_record_encoder(
    struct_class: type, version: int, *, flexible: bool, lead: bytes
) -> Callable[[object], bytes]:
    """A function of a message without records that returns `lead` and the message as one piece."""
    source = EncoderSource(version, flexible=flexible, split=False)
    text = source.write(struct_class, lead=lead)
    code = compile(text, f"<encoder of {struct_class.__name__} v{version}>", "exec")
    exec(code, source.names)
    return cast("Callable[[object], bytes]", source.names["encode"])


class EncoderSource:
    """The text of one encoder while it is being written, and the names it uses."""

    def __init__(self, version: int, *, flexible: bool, split: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.split = split
        self.names: dict[str, object] = {
            "pack": pack,
            "refuse_value": refuse_value,
            "uvarint": uvarint,
        }
        self._lines: list[str] = []
        self._depth = 1
        self._serial = 0
        # Fixed-size values that are packed together: (struct code, expression); a zero byte that
        # is always there is a pad byte without an expression.
        self._run: list[tuple[str, str]] = []

    def write(self, struct_class: type, *, lead: bytes | None = None) -> str:
        """The source of `encode(o1)`. With a lead it returns bytes instead of a list of buffers."""
        if self.split:
            self._emit("buffers = []")
        self._emit("parts = []" if lead is None else f"parts = [{lead!r}]")
        self._emit("add = parts.append")
        message = self._fresh("o")
        self._struct(struct_class, message)
        self._flush()
        if self.split:
            self._emit('if parts: buffers.append(b"".join(parts))')
            self._emit("return buffers")
        else:
            self._emit('return [b"".join(parts)]' if lead is None else 'return b"".join(parts)')
        return "\n".join([f"def encode({message}):", *self._lines])

    def _emit(self, line: str) -> None:
        self._lines.append(" " * self._depth + line)

    @contextmanager
    def _block(self, head: str) -> Iterator[None]:
        self._emit(head)
        self._depth += 1
        yield
        self._depth -= 1

    def _fresh(self, prefix: str) -> str:
        self._serial += 1
        return f"{prefix}{self._serial}"

    def _packed(self, *, also: tuple[str, str] | None = None) -> str | None:
        """The expression for the bytes of the collected run, and of one value more."""
        run = [*self._run, also] if also else self._run
        codes = "".join(code for code, _ in run)
        if not codes.strip("x"):
            return repr(bytes(len(codes))) if codes else None
        writer = "write_" + codes.replace("?", "t")
        self.names[writer] = Struct(">" + codes).pack
        return f"{writer}({', '.join(value for code, value in run if code != 'x')})"

    def _flush(self, *, also: tuple[str, str] | None = None, keep: bool = False) -> None:
        packed = self._packed(also=also)
        if packed:
            self._emit(f"add({packed})")
        if not keep:
            self._run.clear()

    def _length(self, length: str, code: str) -> None:
        """Write the run and a length; `length` is one more than the size where it is compact."""
        if not self.flexible:
            self._flush(also=(code, length))
            return
        with self._block(f"if {length} < 128:"):
            self._flush(also=("B", length), keep=True)
        with self._block("else:"):
            self._flush()
            self._emit(f"add(uvarint({length}))")

    def _struct(self, struct_class: type, holder: str) -> None:
        tagged = []
        for field in fields_of(struct_class):
            value = f"{holder}.{field.name}"
            if not field.is_in(self.version):
                if not field.ignorable:
                    refusal = f"refuse_value({field.name!r}, {self.version})"
                    self._emit(f"if {self._differs(field, value)}: {refusal}")
            elif field.tag is None:
                self._value(field, value)
            else:
                tagged.append(field)
        if self.flexible:
            self._tags(sorted(tagged, key=lambda field: cast("int", field.tag)), holder)

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

    def _tags(self, tagged: list[Field], holder: str) -> None:
        if not tagged:
            self._run.append(("x", ""))
            return
        if len(tagged) == 1:
            value = f"{holder}.{tagged[0].name}"
            with self._block(f"if {self._differs(tagged[0], value)}:"):
                self._flush(also=("B", "1"), keep=True)
                kept, self._run = self._run, []
                self._tag(tagged[0], value)
                self._run = kept
            with self._block("else:"):
                self._flush(also=("x", ""))
            return
        present = self._fresh("t")
        conditions = [f"({self._differs(field, f'{holder}.{field.name}')})" for field in tagged]
        with self._block(f"if {' or '.join(conditions)}:"):
            self._emit(f"{present} = {' + '.join(f'bool{c}' for c in conditions)}")
            self._flush(also=("B", present), keep=True)
            kept, self._run = self._run, []
            for field, condition in zip(tagged, conditions, strict=True):
                with self._block(f"if {condition}:"):
                    self._tag(field, f"{holder}.{field.name}")
            self._run = kept
        with self._block("else:"):
            self._flush(also=("x", ""))

    def _tag(self, field: Field, value: str) -> None:
        """One tagged field: its number, its size, and its value, written aside if that may vary."""
        if field.kind in FIXED_SIZE:
            head = uvarint(cast("int", field.tag)) + uvarint(calcsize(field.kind.value))
            self._run.append((field.kind.value, value))
            self._emit(f"add({head!r} + {self._packed()})")
            self._run.clear()
            return
        outer, body = self._fresh("outer"), self._fresh("body")
        self._emit(f"{outer} = parts; parts = []; add = parts.append")
        self._value(field, value)
        self._flush()
        self._emit(f'{body} = b"".join(parts); parts = {outer}; add = parts.append')
        self._emit(f"add(uvarint({field.tag}) + uvarint(len({body})) + {body})")

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
            self._sized(field.kind, value, nullable=field.is_nullable(self.version))

    def _sized(self, kind: FieldKind, value: str, *, nullable: bool) -> None:
        """A string or bytes: a length and so many bytes."""
        content, length = self._fresh("v"), self._fresh("n")
        encode = ".encode()" if kind is FieldKind.STRING else ""
        null, size = ("0", f"len({content}) + 1") if self.flexible else ("-1", f"len({content})")
        if nullable:
            self._emit(f"{content} = {value}")
            self._emit(f'if {content} is None: {content} = b""; {length} = {null}')
            again = f"{content} = {content}{encode}; " if encode else ""
            self._emit(f"else: {again}{length} = {size}")
        else:
            self._emit(f"{content} = {value}{encode}")
            self._emit(f"{length} = {size}")
        self._length(length, "h" if kind is FieldKind.STRING else "i")
        self._emit(f"add({content})")

    def _records(self, field: Field, value: str) -> None:
        content, length = self._fresh("v"), self._fresh("n")
        self._emit(f"{content} = {value}")
        if field.is_nullable(self.version):
            self._emit(f"if {content} is None: {content} = (); {length} = -1")
            self._emit(f"elif isinstance({content}, (bytes, memoryview)):")
        else:
            self._emit(f"if isinstance({content}, (bytes, memoryview)):")
        self._emit(f" {length} = len({content}); {content} = ({content},)")
        self._emit(f"else: {length} = sum(map(len, {content}))")
        if self.flexible:
            self._emit(f"{length} += 1")
        self._length(length, "i")
        with self._block(f"if {length} > {int(self.flexible)}:"):
            self._emit('buffers.append(b"".join(parts)); parts.clear()')
            self._emit(f"buffers.extend({content})")

    def _nested(self, field: Field, value: str) -> None:
        struct_class = cast("type", field.element)
        holder = self._fresh("o")
        self._emit(f"{holder} = {value}")
        if not field.is_nullable(self.version):
            self._struct(struct_class, holder)
            return
        # A nullable struct is led by a byte: -1 for null, 1 for a struct that follows.
        with self._block(f"if {holder} is None:"):
            self._flush(also=("b", "-1"), keep=True)
        with self._block("else:"):
            self._run.append(("b", "1"))
            self._struct(struct_class, holder)
            self._flush()

    def _array(self, field: Field, value: str) -> None:
        items, length = self._fresh("l"), self._fresh("n")
        self._emit(f"{items} = {value}")
        if field.is_nullable(self.version):
            with self._block(f"if {items} is None:"):
                self._flush(also=("x", "") if self.flexible else ("i", "-1"), keep=True)
            with self._block("else:"):
                self._items(field, items, length)
        else:
            self._items(field, items, length)

    def _items(self, field: Field, items: str, length: str) -> None:
        self._emit(f"{length} = len({items}){' + 1' if self.flexible else ''}")
        self._length(length, "i")
        if isinstance(field.element, type):
            item = self._fresh("o")
            with self._block(f"for {item} in {items}:"):
                self._struct(field.element, item)
                self._flush()
        elif field.element is FieldKind.UUID:
            self._emit(f'add(b"".join({items}))')
        elif field.element in FIXED_SIZE:
            code = cast("FieldKind", field.element).value
            self._emit(f'if {items}: add(pack(f">{{len({items})}}{code}", *{items}))')
        else:
            item = self._fresh("v")
            with self._block(f"for {item} in {items}:"):
                self._sized(cast("FieldKind", field.element), item, nullable=False)
