"""`odradek pipe offload`: wrong usage is told before anything starts (tests/e2e/spark runs it)."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from odradek.pipeline.cli.pipe import pipe


@pytest.mark.parametrize(
    "changed",
    [
        {"--format": "csv"},
        {"--value-format": "xml"},
        {"--time-partition": "week"},
        {"--start": "yesterday"},
        {"--topics": ""},
    ],
)
def test_wrong_settings_are_wrong_usage(changed: dict[str, str], tmp_path: Path) -> None:
    options = {"--name": "archive", "--topics": "orders", "--table": str(tmp_path / "table")}
    arguments = [word for pair in {**options, **changed}.items() for word in pair]
    ran = CliRunner().invoke(pipe, ["offload", *arguments, "--once"])
    assert ran.exit_code == 2, ran.output
    assert not (tmp_path / "table").exists()
