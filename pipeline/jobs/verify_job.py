"""Verifies the table of a job by the job's own options: what `odradek pipe verify` runs."""

from collections.abc import Callable

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.dead_letter_reader import letter_index
from odradek.pipeline.jobs.job_options import JobOptions
from odradek.pipeline.jobs.offload import job_values, table_job
from odradek.pipeline.jobs.partition_comparison import PartitionReport
from odradek.pipeline.jobs.setting_names import UPSERT_VALUES
from odradek.pipeline.jobs.verify import VerifyReport, verify_table
from odradek.pipeline.jobs.wire_options import open_cluster
from odradek.pipeline.tables.job_plan import TableJob
from odradek.pipeline.tables.target import open_table


def verify_job(options: JobOptions, told: Callable[[PartitionReport], None]) -> VerifyReport:
    """PipelineError if the options are not those of the table's job, and as `verify_table`."""
    table = open_table("", options.table, options.table_options)
    job, given = table.job(), table_job(options)
    if job is not None:
        if job.value_format.startswith(UPSERT_VALUES):
            raise PipelineError(
                f"table {options.table} is made by odradek pipe upsert and has only the last record"
                " of each key: verify compares tables of odradek pipe offload"
            )
        for name in TableJob.__slots__:
            _check_same(name.replace("_", "."), getattr(job, name), getattr(given, name))
    with open_cluster(options.bootstrap_servers, options.kafka) as cluster:
        return verify_table(
            cluster,
            table,
            job_values(options),
            lambda: letter_index(cluster, options.dead_letter_topic, options.group),
            told=told,
        )


def _check_same(name: str, of_table: object, given: object) -> None:
    if of_table != given:
        raise PipelineError(
            f"the table was made with {name} {_text(of_table)} and not {_text(given)}:"
            " verify with the options that the job has"
        )


def _text(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value) or "(none)"
