"""Iceberg's own part: snapshots name their plans, options name catalogs.

What all formats promise is in test_target.
"""

from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.tables.target import open_table
from tests.pipeline.tables.table_samples import fill, job, offsets_in, plan


def test_a_snapshot_names_its_plan(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = open_table("iceberg", str(tmp_path / "orders"))
    table.claim(job("iceberg"))
    fill(table, plan(1, (0, 0, 6)))
    fill(table, plan(2, (0, 6, 7)))
    uri = f"sqlite:///{tmp_path}/orders/catalog.db"
    found = load_catalog("odradek", type="sql", uri=uri).load_table(("odradek", "archive"))
    plans = [each.summary["odradek.plan"] for each in found.snapshots() if each.summary]
    assert plans == ["1", "2"]
    assert found.properties["odradek.plan.archive"] == "2"
    assert [each.name for each in found.spec().fields] == ["kafka_date"]
    assert caplog.messages == [], "what a command would print between its lines"


def test_old_metadata_files_are_deleted(tmp_path: Path) -> None:
    """Each has all snapshots: those of 10,000 plans would be some ten gigabytes."""
    table = open_table("iceberg", str(tmp_path / "orders"))
    table.claim(job("iceberg"))
    fill(table, plan(1, (0, 0, 1)))
    uri = f"sqlite:///{tmp_path}/orders/catalog.db"
    found = load_catalog("odradek", type="sql", uri=uri).load_table(("odradek", "archive"))
    with found.transaction() as transaction:
        transaction.set_properties({"write.metadata.previous-versions-max": "2"})
    for number in range(2, 8):
        fill(table, plan(number, (0, number, number + 1)))
    metadata = [*(tmp_path / "orders" / "metadata").glob("*.metadata.json")]
    assert len(metadata) == 3
    assert offsets_in(table) == [0, *range(2, 8)]


def test_any_catalog_is_named_by_options(tmp_path: Path) -> None:
    options = {
        "catalog.type": "sql",
        "catalog.uri": f"sqlite:///{tmp_path}/everything.db",
        "catalog.table": "sales.orders",
    }
    table = open_table("iceberg", str(tmp_path / "orders"), options)
    table.claim(job("iceberg"))
    fill(table, plan(1, (0, 0, 3)))
    assert offsets_in(table) == [0, 1, 2]
    uri = f"sqlite:///{tmp_path}/everything.db"
    found = load_catalog("odradek", type="sql", uri=uri).load_table(("sales", "orders"))
    assert found.location() == f"file://{tmp_path}/orders"
    assert not (tmp_path / "orders" / "catalog.db").exists()


def test_a_catalog_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    options = {"catalog.type": "sql", "catalog.uri": f"sqlite:///{tmp_path}/absent/x.db"}
    table = open_table("iceberg", str(tmp_path / "orders"), options)
    table.claim(job("iceberg"))
    with pytest.raises(PipelineError, match=r"Iceberg table .*unable to open database") as raised:
        fill(table, plan(1, (0, 0, 3)))
    assert "\n" not in str(raised.value)
