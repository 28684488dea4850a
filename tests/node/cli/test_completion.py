"""Shell completion."""

import os
import subprocess
import sys

import pytest

from tests.node.cli.conftest import Run
from tests.support.ports import free_port


def complete(words: str, bootstrap: str) -> list[str]:
    """What a bash offers after `words`: the last one is incomplete."""
    ran = subprocess.run(
        [sys.executable, "-m", "odradek"],
        capture_output=True,
        text=True,
        check=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "_ODRADEK_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
            "ODRADEK_BOOTSTRAP": bootstrap,
        },
    )
    assert ran.stderr == ""
    return [line.partition(",")[2] for line in ran.stdout.splitlines() if line]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell_calls_this_program(shell: str, odradek: Run) -> None:
    ran = odradek("completion", shell)
    assert ran.exit_code == 0
    assert f"_ODRADEK_COMPLETE={shell}_complete" in ran.stdout


def test_commands_complete_without_a_cluster() -> None:
    assert complete("odradek top", "127.0.0.1:1") == ["topic"]


def test_without_a_cluster_there_is_no_completion_and_no_error() -> None:
    assert complete("odradek topic describe x", f"127.0.0.1:{free_port()}") == []


@pytest.mark.e2e
def test_topics_complete_from_the_cluster(topic: str, bootstrap: str) -> None:
    assert topic in complete(f"odradek topic describe {topic[:8]}", bootstrap)
