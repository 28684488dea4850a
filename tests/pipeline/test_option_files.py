"""Relative paths in options, as they reach tasks with other working directories."""

import os
from pathlib import Path

import pytest

from odradek.pipeline.jobs.job_options import job_options
from odradek.pipeline.option_files import FILE_OPTIONS, with_absolute_paths
from odradek.pipeline.sink.sink_options import sink_options
from odradek.pipeline.source.options import source_options


def test_only_files_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    for name in FILE_OPTIONS:
        assert with_absolute_paths({name: "tls/ca.pem"}) == {name: str(tmp_path / "tls/ca.pem")}
        assert with_absolute_paths({name: "~/ca.pem"}) == {name: "/home/me/ca.pem"}
    others = {"ssl.ca.location": "probe", "ssl.key.location": "", "client.id": "tls/ca.pem"}
    assert with_absolute_paths(others) == others


def test_jobs_sources_and_sinks_take_files_relative_to_the_program() -> None:
    given = {"kafka.ssl.ca.location": "ca.pem", "kafka.security.protocol": "SSL"}
    given["kafka.bootstrap.servers"] = "a:1"
    absolute = os.path.abspath("ca.pem")
    named = {"name": "n", "topics": "t", "table": "lake"}
    kafka = {"kafka.ssl.ca.location": "ca.pem"}
    assert job_options(named | kafka).kafka["ssl.ca.location"] == absolute
    source = source_options(given | {"subscribe": "t"}, is_stream=False)
    assert source.kafka["ssl.ca.location"] == absolute
    assert sink_options(given | {"topic": "t"}).properties["ssl.ca.location"] == absolute
