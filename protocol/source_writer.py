"""The source of one function, line by line: what `encoding` and `decoding` have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from odradek.protocol.primitives import ARRAY_STRUCTS
from odradek.protocol.schema import FieldKind

SLICE_ELEMENTS: Final = 500
"""Elements of arrays that are decoded or encoded at a stretch: about a millisecond."""


class SourceWriter:
    """The body of a function while it is written, and the global names that it uses."""

    def __init__(self, **names: object) -> None:
        self.names = names
        self.lines: list[str] = []
        self.indentation = " "
        self._serial = 0

    def emit(self, line: str) -> None:
        """Append a line."""
        self.lines.append(self.indentation + line)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Append the head of a compound statement; what is emitted inside is its body."""
        self.emit(head)
        self.indentation += " "
        yield
        self.indentation = self.indentation[:-1]

    def begin_slices(self) -> None:
        """Before all loops of a generator that works in slices."""
        self.emit(f"turn = {SLICE_ELEMENTS}")

    def end_slice(self, before: str = "") -> None:
        """At the end of a loop's body: yield if that was the last element of a slice, after the
        statement `before`."""
        self.emit("turn -= 1")
        self.emit(f"if not turn: turn = {SLICE_ELEMENTS}; {before}yield")

    def fresh(self, prefix: str) -> str:
        """A new variable name."""
        self._serial += 1
        return f"{prefix}{self._serial}"

    def array_structs(self, kind: FieldKind) -> str:
        """The name of the ArrayStructs of a kind."""
        name = "structs_" + kind.value.replace("?", "t")
        self.names[name] = ARRAY_STRUCTS[kind]
        return name

    def compile(self, name: str, parameters: str, what: str) -> Any:  # noqa: ANN401 - any signature
        """The function; `what` stands for its file in tracebacks."""
        source = "\n".join([f"def {name}({parameters}):", *self.lines])
        exec(compile(source, f"<{what}>", "exec"), self.names)
        return self.names[name]
