"""The declared metrics follow the conventions, and docs/metrics.md has them all."""

import re
from pathlib import Path

import pytest

from odradek.node.metrics.families import FAMILIES, SECTIONS
from odradek.node.metrics.family import MetricFamily, MetricKind, SeriesBound, unit_of
from odradek.node.router.telemetry.otlp import NAME_PREFIX
from tests.support.metrics_page import main

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
DOCS = sorted({*PAGE.parent.rglob("*.md"), PAGE.parents[1] / "README.md"})
each_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


def test_the_page_is_the_one_that_the_declarations_make(tmp_path: Path) -> None:
    main([str(tmp_path / "page.md")])
    assert (tmp_path / "page.md").read_text() == PAGE.read_text(), "run: make docs"


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_documents_name_no_other_metrics(page: Path) -> None:
    named = set(re.findall(r"`((?:odradek|process)_[a-z_]+)(?:`|{)", page.read_text()))
    others = (NAME_PREFIX, "odradek_pipe_")  # Of clients, and of jobs of the data pipeline.
    assert {name for name in named if not name.startswith(others)} <= set(FAMILIES)


def test_no_name_is_declared_twice() -> None:
    assert len(FAMILIES) == sum(map(len, SECTIONS.values()))
    bases = [family.base_name for family in FAMILIES.values()]
    assert len(set(bases)) == len(bases), "OpenMetrics knows families without their suffixes"


@each_family
def test_names_follow_the_conventions(family: MetricFamily) -> None:
    assert re.fullmatch("(odradek|process)(_[a-z0-9]+)+", family.name)
    assert family.name.endswith("_total") == (family.kind is MetricKind.COUNTER)
    assert family.name.endswith("_info") == (family.kind is MetricKind.INFO)
    # The unit stands last, in a base unit.
    assert not re.search("_(ms|milliseconds|kilobytes|percent)(_|$)", family.name)
    inner = family.base_name.rpartition("_")[0]
    assert not unit_of(inner), f"{family.name} has its unit in the middle"
    assert not family.name.startswith(NAME_PREFIX), "clients push under this prefix"


@each_family
def test_help_is_one_line_and_no_sentence(family: MetricFamily) -> None:
    assert family.help
    assert "\n" not in family.help
    assert not family.help.endswith(".")
    assert family.process in ("every", "supervisor", "controller", "router", "worker")


@each_family
def test_labels_of_clients_topics_and_groups_are_bounded(family: MetricFamily) -> None:
    growing = {"topic", "partition", "group", "user", "client_id"}
    assert bool(growing & set(family.labels)) == (family.bound is not SeriesBound.FIXED)
    assert "le" not in family.labels
