"""Text in columns."""

from odradek.pipeline.jobs.text_table import aligned


def test_columns_are_as_wide_as_their_widest_text() -> None:
    rows = [("name", "topic", "lag"), ("a", "orders", "1,000"), ("longer", "t", "")]

    assert [*aligned(rows)] == [
        "name     topic    lag",
        "a       orders  1,000",
        "longer       t",
    ]
    assert [*aligned(rows, left=2)] == [
        "name    topic     lag",
        "a       orders  1,000",
        "longer  t",
    ]
