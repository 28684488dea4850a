"""The commands of docs/operations.md for compose, as a dry run: which containers they replace.

How nodes take over from each other is tested with processes (test_rolling_restart.py) and with the
chart's pods (test_chart.py).
"""

import re
import shlex
import subprocess
from pathlib import Path

import docker
import pytest

from tests.support.operations_page import PAGE, chapters

REPOSITORY = Path(__file__).parents[3]


def dry_run(command: str) -> str:
    """What a command of compose would do."""
    program, compose, *arguments = shlex.split(command)
    assert (program, compose) == ("docker", "compose")
    done = subprocess.run(
        [program, compose, "--project-name", "operations-page", "--dry-run", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


def test_an_upgrade_replaces_one_node_after_another(engine: docker.DockerClient) -> None:
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    if plugin.returncode:
        pytest.skip("the docker command has no compose plugin here")
    (chapter,) = (each for each in chapters(PAGE.read_text()) if each.title == "With compose")
    build, *replacements = (step.command for step in chapter.steps)
    assert "naming to odradek" in dry_run(build)
    replaced = []
    for command in replacements:
        done = dry_run(command)
        (node,) = set(re.findall(r"Container operations-page-([\w-]+)-1 +Started", done))
        assert re.search(rf"Container operations-page-{node}-1 +Healthy", done), done
        replaced.append(node)
    assert sorted(replaced) == ["node-0", "node-1", "node-2"]
