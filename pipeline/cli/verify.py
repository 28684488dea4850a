"""`odradek pipe verify`: proves that a table has all records of its topics."""

import json
import sys
from typing import TYPE_CHECKING

import click

from odradek.pipeline.cli.job_flags import takes_job

if TYPE_CHECKING:
    from odradek.pipeline.jobs.job_options import JobOptions
    from odradek.pipeline.jobs.partition_comparison import PartitionReport


@click.command("verify")
@takes_job
@click.option(
    "--output", type=click.Choice(["text", "json"]), default="text", help="For people or scripts."
)
@click.option(
    "--commit-verified",
    is_flag=True,
    help="Commit what is proven to the group pipe.NAME.verified: for the topic's setting"
    " odradek.archive.group, by which the broker keeps what is not.",
)
def command(options: "JobOptions", output: str, commit_verified: bool) -> None:
    """Compare a table and its dead letters with the topics, record by record.

    Reports records that are missing, doubled or altered, and explains each offset without a record:
    control record, aborted transaction, compacted or expired. Exits with 1 if anything is
    unexplained. Needs no Spark. The job may run meanwhile.

    \b
    odradek pipe verify job.yaml
    odradek pipe verify --name archive --topics orders --table lake/orders --output json
    """
    # Only now: `--help` needs no Arrow.
    from odradek.pipeline.group_offsets import commit_offsets
    from odradek.pipeline.jobs.verify import verified_group
    from odradek.pipeline.jobs.verify_job import verify_job
    from odradek.pipeline.jobs.verify_report import report_document, report_lines
    from odradek.pipeline.jobs.wire_options import timeout_s
    from odradek.pipeline.librdkafka import client_properties

    report = verify_job(options, _show_progress)
    if output == "json":
        click.echo(json.dumps(report_document(report), indent=2))
    else:
        for line in report_lines(report):
            click.echo(line)
    if not report.is_proven:
        raise SystemExit(1)
    if commit_verified:
        properties = client_properties(options.kafka, bootstrap_servers=options.bootstrap_servers)
        group = verified_group(options.name)
        commit_offsets(
            properties, group, report.verified_offsets, timeout_s=timeout_s(options.kafka)
        )
        click.echo(f"Committed to the group {group}.", err=True)


def _show_progress(report: "PartitionReport") -> None:
    if sys.stderr.isatty():
        click.echo(f"{report.topic}-{report.partition}: compared", err=True)
