"""A job by flags, by a file, and by both: flags come first."""

from pathlib import Path

import click
from click.testing import CliRunner

from odradek.pipeline.cli.job_flags import takes_job
from odradek.pipeline.jobs.job_options import JobOptions


@click.command()
@takes_job
def show(options: JobOptions) -> None:
    click.echo(f"{options.name} {options.format} {','.join(options.topics)}")


def test_flags_come_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"name: archive\ntopics: [orders]\ntable: {tmp_path / 't'}\nformat: delta\n")
    by_file = CliRunner().invoke(show, [str(file)])
    assert by_file.output == "archive delta orders\n"
    by_both = CliRunner().invoke(show, [str(file), "--format", "iceberg", "--topics", "a,b"])
    assert by_both.output == "archive iceberg a,b\n"


def test_what_is_missing_is_wrong_usage() -> None:
    ran = CliRunner().invoke(show, ["--name", "archive"])
    assert ran.exit_code == 2
    assert "table" in ran.output
