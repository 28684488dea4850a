"""Every command and every program of docs/pipeline.md, as it is printed there and in that order.

They run in an empty folder with a shell and a Python of their own, as a reader's would. The
chapters run one after another: each finds what those before have left. Only the addresses of
brokers are others here.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from odradek.pipeline.jobs.copy_options import REPLAY_SETTINGS
from odradek.pipeline.jobs.job_metrics import JobMetrics, TriggerProgress
from odradek.pipeline.jobs.setting_names import SETTINGS
from odradek.pipeline.kafka_types import PartitionName
from odradek.pipeline.sink.sink_options import sink_options
from odradek.pipeline.source.options import OPTIONS
from odradek.pipeline.tables.rows import COORDINATES
from tests.e2e.spark.conftest import JARS, ROOT
from tests.support.operations_page import DOCS, Chapter, PageCommand, chapters
from tests.support.ports import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

PAGE: Final = DOCS / "pipeline.md"
CHAPTERS: Final = tuple(chapters(PAGE.read_text()))
INSTALLATION: Final = {
    "python3 -m venv .venv && . .venv/bin/activate",
    "pip install '/path/to/odradek[spark,delta]'",
}
"""What has made the environment of this test; tests/test_packaging.py installs the package."""
WITH_JARS: Final = {"The stock connector"}
"""Needs what Maven fetches (make spark)."""
SLOW: Final = {"Iceberg", "Spark: reading", "Other masters"} | WITH_JARS
"""What others do not build upon."""
ADDRESSES: Final = re.compile(r"127\.0\.0\.1:9[12]92")
STARTED_S: Final = 60.0
STEP_S: Final = 240.0
"""Spark on a busy machine."""


class PipelineReader:
    """Somebody who follows the page in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._addresses: dict[str, str] = {}
        self._brokers: list[subprocess.Popen[bytes]] = []
        first = self._here("127.0.0.1:9092")
        own = {
            name: value
            for name, value in os.environ.items()
            if "ODRADEK" not in name and not name.startswith(("SPARK_", "PYSPARK_"))
        }
        self._environment = {
            **own,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            # Spark lists the folders of the path, which an editable installation is not in.
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "XDG_CONFIG_HOME": str(folder),
            "NO_COLOR": "1",
            # What the page leaves to defaults.
            "ODRADEK_BOOTSTRAP": first,
            "ODRADEK_LISTENERS": f"PLAINTEXT://{first}",
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    def follow(self, step: PageCommand) -> None:
        """Do what a step says, and compare what it prints."""
        if step.command in INSTALLATION:
            return
        match step.kind:
            case "file":
                (self._folder / step.command).write_text("\n".join([*step.lines, ""]))
            case "console" if step.command.startswith("odradek serve "):
                self._start_broker(step)
            case "console":
                self._check(step, self._run("bash", "-o", "pipefail", "-c", step.command))
            case "python":
                self._check(step, self._run(sys.executable, "-c", step.command))

    def leave(self) -> None:
        """Stop the brokers."""
        for broker in self._brokers:
            broker.send_signal(signal.SIGTERM)
        for broker in self._brokers:
            broker.wait(60)

    def link_jars(self, jars: str) -> None:
        """The folder that a chapter names."""
        (self._folder / "spark-kafka-jars").symlink_to(jars)

    def _here(self, text: str) -> str:
        """The text with addresses of this machine."""

        def address(found: re.Match[str]) -> str:
            if found[0] not in self._addresses:
                self._addresses[found[0]] = f"127.0.0.1:{free_port()}"
            return self._addresses[found[0]]

        return ADDRESSES.sub(address, text)

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*words[:-1], self._here(words[-1])],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=STEP_S,
            check=False,
        )

    def _check(self, step: PageCommand, ran: subprocess.CompletedProcess[str]) -> None:
        output = ran.stdout + ran.stderr
        assert ran.returncode == step.exit_code, f"{step.command}: {output}"
        missing = step.missing_line(output)
        assert missing is None, f"{step.command} does not print {missing!r}, but {output}"

    def _start_broker(self, step: PageCommand) -> None:
        log = self._folder / f"broker-{len(self._brokers)}.log"
        with log.open("wb") as output:
            broker = subprocess.Popen(
                ["bash", "-c", f"exec {self._here(step.command)}"],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._brokers.append(broker)

        def is_ready() -> bool:
            assert broker.poll() is None, log.read_text()
            return step.missing_line(log.read_text()) is None

        wait_until(is_ready, timeout_s=STARTED_S, what=step.command)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelineReader]:
    found = PipelineReader(tmp_path_factory.mktemp("page"))
    try:
        yield found
    finally:
        found.leave()


@pytest.mark.parametrize(
    "chapter",
    [
        pytest.param(
            chapter, id=chapter.title, marks=[pytest.mark.slow] if chapter.title in SLOW else []
        )
        for chapter in CHAPTERS
        if chapter.steps
    ],
)
def test_every_command_works_as_it_is_printed(reader: PipelineReader, chapter: Chapter) -> None:
    if chapter.title in WITH_JARS:
        if not os.environ.get(JARS):
            pytest.skip(f"{JARS} names no folder of jars")
        reader.link_jars(os.environ[JARS])
    for step in chapter.steps:
        reader.follow(step)


def test_no_command_of_the_page_is_left_out() -> None:
    """Another kind of block would have commands that nobody runs."""
    kinds = re.findall(r"^```(\w*)$", PAGE.read_text(), re.MULTILINE)[::2]
    assert set(kinds) == {"console", "python", "text", "yaml"}
    steps = [step for chapter in CHAPTERS for step in chapter.steps]
    assert {step.command for step in steps} > INSTALLATION
    assert {chapter.title for chapter in CHAPTERS} > SLOW
    assert len([step for step in steps if step.kind == "file"]) == kinds.count("yaml")


def test_links_lead_to_chapters_and_files() -> None:
    anchors = {re.sub(r"[^\w -]", "", each.title).lower().replace(" ", "-") for each in CHAPTERS}
    for link in re.findall(r"\]\(([^)]+)\)", PAGE.read_text()):
        file, _, anchor = link.partition("#")
        assert (DOCS / file).exists(), link
        if not file:
            assert anchor in anchors, link


TEXT: Final = {chapter.title: chapter.text for chapter in CHAPTERS}


def test_every_setting_and_option_is_in_its_chapter() -> None:
    taken = {"topic", "transactionalIdPrefix", "keepTimestamp"}
    sink_options({"kafka.bootstrap.servers": "any:9092", **dict.fromkeys(taken, "true")})
    for chapter, names in (
        ("Jobs", SETTINGS.keys()),
        ("Spark: reading", OPTIONS),
        ("Spark: writing", taken),
        ("Replay", REPLAY_SETTINGS.keys() - {"bootstrap.servers"}),
        ("Tables", COORDINATES.names),
    ):
        assert [name for name in names if f"`{name}`" not in TEXT[chapter]] == [], chapter


def test_the_metrics_are_those_of_jobs() -> None:
    metrics = JobMetrics("any")
    progress = TriggerProgress("any", 1, 1, 0, 1, 1.0, 1, {PartitionName("orders", 0): 1})
    metrics.add(progress)
    written = set(re.findall(r"^# TYPE (\w+) ", metrics.text(), re.MULTILINE))
    assert set(re.findall(r"`(odradek_pipe_\w+)`", PAGE.read_text())) == written
