"""Spark's DDL text of a schema as Arrow: `id BIGINT NOT NULL, tags ARRAY<STRING>, at TIMESTAMP`.

What Spark reads by `StructType.fromDDL`, without the types that no table format shares (intervals,
VARIANT). A field that is NOT NULL is not nullable in the result: a value without it is bad.
"""

import re
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from odradek.pipeline.errors import PipelineError

_SIMPLE: Final = {
    "BOOLEAN": pa.bool_(),
    "BYTE": pa.int8(),
    "TINYINT": pa.int8(),
    "SHORT": pa.int16(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "LONG": pa.int64(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "CHAR": pa.string(),
    "VARCHAR": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_LTZ": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}
_DECIMALS: Final = ("DECIMAL", "DEC", "NUMERIC")
_TOKEN: Final = re.compile(
    r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<word>\w+)|(?P<sign>[<>(),:]))"
)
_END: Final = ""


def spark_ddl_schema(text: str) -> pa.Schema:
    """The columns of a DDL text; PipelineError with the place that cannot be read."""
    parser = _Parser(text)
    fields = parser.fields(_END)
    if not fields:
        raise PipelineError("value.schema is empty; write columns as `id BIGINT, name STRING`")
    return pa.schema(fields)


class _Parser:
    """Recursive descent with one token in sight."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split()
        self._ahead, self._place, self._is_quoted = next(self._tokens)

    def fields(self, closing: str) -> list[pa.Field]:
        """Fields up to, without, `closing`."""
        fields: list[pa.Field] = []
        while self._ahead != closing or self._is_quoted:
            if fields:
                self._expect(",")
            fields.append(self._field())
        return fields

    def _field(self) -> pa.Field:
        if not self._is_quoted and not re.fullmatch(r"\w+", self._ahead):
            raise self._wrong("the name of a column")
        name = self._next()
        if self._ahead == ":" and not self._is_quoted:
            self._next()
        kind = self._type()
        is_nullable = True
        if self._is_word("NOT"):
            self._next()
            if not self._is_word("NULL"):
                raise self._wrong("NULL")
            self._next()
            is_nullable = False
        if self._is_word("COMMENT"):
            self._next()
            if self._ahead[:1] not in ("'", '"'):
                raise self._wrong("a comment in quotes")
            self._next()
        return pa.field(name, kind, nullable=is_nullable)

    def _type(self) -> pa.DataType:
        word = self._ahead.upper()
        if self._is_quoted or not (
            word in _SIMPLE or word in (*_DECIMALS, "ARRAY", "MAP", "STRUCT")
        ):
            raise self._wrong("a type of Spark's (BIGINT, STRING, TIMESTAMP, ARRAY<...>, ...)")
        self._next()
        if word == "ARRAY":
            self._expect("<")
            kind = pa.list_(self._type())
            self._expect(">")
            return kind
        if word == "MAP":
            self._expect("<")
            key = self._type()
            self._expect(",")
            kind = pa.map_(key, self._type())
            self._expect(">")
            return kind
        if word == "STRUCT":
            self._expect("<")
            kind = pa.struct(self.fields(">"))
            self._expect(">")
            return kind
        arguments = self._arguments()
        return _SIMPLE[word] if word in _SIMPLE else self._decimal(*arguments)

    def _decimal(self, precision: int = 10, scale: int = 0, *more: int) -> pa.DataType:
        """Spark's default is DECIMAL(10, 0)."""
        if more or not 1 <= precision <= 38 or not 0 <= scale <= precision:
            raise PipelineError(
                f"value.schema: DECIMAL({precision}, {scale}) has 1 to 38 digits,"
                " and not more of them after the point"
            )
        return pa.decimal128(precision, scale)

    def _arguments(self) -> list[int]:
        arguments: list[int] = []
        if self._ahead == "(":
            self._next()
            while True:
                if not self._ahead.isdigit():
                    raise self._wrong("a number")
                arguments.append(int(self._next()))
                if self._ahead != ",":
                    break
                self._next()
            self._expect(")")
        return arguments

    def _is_word(self, word: str) -> bool:
        return not self._is_quoted and self._ahead.upper() == word

    def _expect(self, sign: str) -> None:
        if self._ahead != sign or self._is_quoted:
            raise self._wrong(f"`{sign}`")
        self._next()

    def _next(self) -> str:
        token = self._ahead
        self._ahead, self._place, self._is_quoted = next(self._tokens)
        return token

    def _split(self) -> Iterator[tuple[str, int, bool]]:
        """(token, its place, whether it is a name in backquotes)."""
        place, text = 0, self._text.rstrip()
        while place < len(text):
            found = _TOKEN.match(text, place)
            if found is None:
                raise PipelineError(
                    f"value.schema: `{text[place:].strip()[:20]}` at character {place + 1}"
                    " is not DDL; write columns as `id BIGINT, name STRING`"
                )
            quoted = found["quoted"]
            token = found[0].strip() if quoted is None else quoted.replace("``", "`")
            yield token, found.end() - len(found[0].strip()), quoted is not None
            place = found.end()
        while True:
            yield _END, len(text), False

    def _wrong(self, wanted: str) -> PipelineError:
        found = f"`{self._ahead}`" if self._ahead else "the end"
        return PipelineError(
            f"value.schema: {found} at character {self._place + 1}, where {wanted} is expected"
        )
