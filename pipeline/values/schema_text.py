"""A schema as the configuration names it: the text itself, or a file of it.

Read on the driver only; executors get what is read here.
"""

from pathlib import Path

from odradek.pipeline.errors import PipelineError


def schema_text(schema: str) -> str:
    """The text of the file of this name if there is one, otherwise `schema` itself.

    Every schema text has a blank, a bracket or a quote in it; what has none is the name of a file
    that is not there.
    """
    if _is_text(schema):
        return schema.strip()
    try:
        return schema_bytes(schema).decode().strip()
    except UnicodeDecodeError:
        raise PipelineError(f"value.schema {schema} is not a text file") from None


def schema_bytes(path: str) -> bytes:
    """A binary schema: the output of protoc."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise PipelineError(
            f"value.schema {path} cannot be read: {error.strerror or error}"
        ) from None


def _is_text(schema: str) -> bool:
    stripped = schema.strip()
    if stripped.startswith(("{", "[", '"', "`")) or "\n" in stripped:
        return True
    return any(letter in stripped for letter in " \t<(") and not Path(stripped).is_file()
