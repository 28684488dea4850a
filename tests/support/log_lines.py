"""What a process would have written of the records that `caplog` has: lines of text with their
fields, without those that are said too often.
"""

import pytest

from odradek.node.repeated_lines import RepeatedLineFilter
from odradek.node.structured_log import line_of


def log_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines so far, each beginning with its event: `event field=value ...`."""
    now_s = 0.0
    limits = RepeatedLineFilter(lambda: now_s)
    lines = []
    for record in caplog.records:
        now_s = record.created
        if limits.filter(record):
            lines.append(line_of(record, "text", "").split(maxsplit=2)[2])
    return lines


def log_text(caplog: pytest.LogCaptureFixture) -> str:
    """The lines as one text."""
    return "\n".join(log_lines(caplog))
