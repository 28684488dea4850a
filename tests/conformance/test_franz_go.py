"""franz-go, the Go client: administration, groups of both protocols, and exactly-once copying.

The program in go/ checks what it sees by itself. It is built once, from modules that go.mod and
go.sum pin; where Go or the modules cannot be had the tests are skipped and say why. ETL_RECORDS is
the number of records that groups of every kind copy (50000 for a thorough run).
"""

import os
import subprocess
from pathlib import Path

import pytest

from tests.conformance.dialogue import DialogueCluster, unique
from tests.support.franz_go import NoFranzGo, build_program

RUN_S = 60.0
ETL_RECORDS = int(os.environ.get("ETL_RECORDS", "3000"))
ETL_S = 120.0 + ETL_RECORDS / 200


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client program, built."""
    try:
        return build_program(tmp_path_factory.mktemp("go"))
    except NoFranzGo as why:
        pytest.skip(str(why))


@pytest.mark.parametrize(
    "scenario",
    [
        "admin",
        "cooperative",
        "consumer-protocol",
        "regex",
        "transactions",
        "transactions-consumer",
    ],
)
def test_franz_go_finds_nothing_amiss(
    program: Path, cluster: DialogueCluster, scenario: str
) -> None:
    run(program, cluster, scenario, timeout_s=RUN_S)


def test_groups_of_every_kind_copy_exactly_once(program: Path, cluster: DialogueCluster) -> None:
    """In two stages, while members come, leave in the middle of a transaction, and come back."""
    run(program, cluster, "etl", "-records", str(ETL_RECORDS), timeout_s=ETL_S)


def run(
    program: Path, cluster: DialogueCluster, scenario: str, *options: str, timeout_s: float
) -> None:
    """Run the program, which must find nothing wrong."""
    names = ("-bootstrap", cluster.bootstrap, "-name", unique("franz"))
    done = subprocess.run(
        [str(program), *names, *options, "-timeout", f"{timeout_s:.0f}s", scenario],
        capture_output=True,
        text=True,
        timeout=timeout_s + 10,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
