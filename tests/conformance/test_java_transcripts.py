"""Subcommands and options of Kafka's command line tools: each must print what it printed with Kafka
4.3.1, when the files in transcripts/ were recorded (see `transcript_run`).

Those in transcripts/three-nodes are for three nodes, which they name; the others are for any
number: with three, the node that a tool asks, the leader and the coordinator are different ones.
Kafka prints the same with three.
"""

import re
from pathlib import Path

import pytest

from tests.conformance.dialogue import DialogueCluster
from tests.conformance.routing import Nodes
from tests.conformance.transcript_run import TranscriptRun, play
from tests.support.java import run_java_tool, why_no_java_tools
from tests.support.kafka_tools import (
    EVERYWHERE,
    NOT_ASKED_FOR,
    SUBCOMMANDS,
    TOOLS,
    TRANSCRIPTS,
    asked,
)

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(bool(why_no_java_tools()), reason=why_no_java_tools() or "Java is there"),
    pytest.mark.no_restarts("leaders, epochs and the quorum are in what the tools print"),
]


LOAD = ("performance",)
"""They take as long as they must, and what they print tells nothing of nodes."""


@pytest.mark.parametrize("path", sorted(TRANSCRIPTS.glob("*.txt")), ids=lambda path: path.stem)
def test_tools_print_what_they_print_with_kafka(
    cluster: DialogueCluster, nodes: Nodes, tmp_path: Path, path: Path
) -> None:
    if path.stem in LOAD and len(nodes.addresses) > 1:
        pytest.skip("loads of records: three nodes have them from other tests")
    play(path, TranscriptRun(cluster.bootstrap, tmp_path, nodes.ids.values(), cluster=cluster))


@pytest.mark.parametrize(
    "path", sorted((TRANSCRIPTS / "three-nodes").glob("*.txt")), ids=lambda path: path.stem
)
def test_three_nodes(cluster: DialogueCluster, nodes: Nodes, tmp_path: Path, path: Path) -> None:
    if len(nodes.addresses) != 3:
        pytest.skip("what is printed of three nodes")
    run = TranscriptRun(
        cluster.bootstrap, tmp_path, nodes.ids.values(), cluster=cluster, tells_nodes=True
    )
    play(path, run)


# -- nothing is missing ---------------------------------------------------------------------------


def options_of(help_text: str) -> set[str]:
    """The options at the beginning of lines."""
    found = re.findall(r"^ {0,4}(?:\* )?(?:-\w[^-]*)?(--[a-z][\w.-]+)", help_text, re.MULTILINE)
    return set(found) - EVERYWHERE


@pytest.mark.parametrize("name", TOOLS)
def test_every_option_is_in_a_transcript_or_has_a_reason(name: str, tmp_path: Path) -> None:
    offered: set[str] = set()
    for words in [(), *((each,) for each in SUBCOMMANDS.get(name, ()))]:
        told = run_java_tool(TOOLS[name].main, *words, "--help", directory=tmp_path)
        offered |= options_of(told.stdout + told.stderr) | set(words)
    left_out = {
        option for tools in NOT_ASKED_FOR.values() for option in tools.get(name, "").split()
    }
    assert offered - asked(name) == left_out
