"""Columns of text for a terminal or a pipe."""

from collections.abc import Iterator, Sequence


def aligned(rows: Sequence[Sequence[str]], *, left: int = 1) -> Iterator[str]:
    """Columns as wide as their widest text, the first `left` ones to the left."""
    widths = [max(len(text) for text in column) for column in zip(*rows, strict=True)]
    for row in rows:
        texts = [
            text.ljust(width) if index < left else text.rjust(width)
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(texts).rstrip()
