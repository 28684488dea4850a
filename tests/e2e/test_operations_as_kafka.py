"""An operator's requests get the answers of Apache Kafka 4.3.1."""

import json
from pathlib import Path
from typing import Final

from odradek.node.embedded import EmbeddedBroker
from tests.support.operations_dialogue import KAFKA_ANSWERS, NODE, OperationsDialogue
from tests.support.wire import WireClient

OTHER_WORDS: Final = (
    # These name classes of Kafka.
    "AddRaftVoter v0, the voter",
    "AddRaftVoter v1, the voter",
    "AddRaftVoter v0, a negative node",
    "AddRaftVoter v1, a negative node",
    "RemoveRaftVoter, no cluster",
    "RemoveRaftVoter, a node that is none",
    "RemoveRaftVoter, a negative node",
    "RemoveRaftVoter, another directory",
    # Kafka says nothing.
    "AlterPartitionReassignments, nothing to cancel",
    # What to do instead.
    "cordoned.log.dirs, set: a relative path",
    "cordoned.log.dirs, append: a relative path",
    "cordoned.log.dirs, the default of the cluster",
)
"""Beginnings of questions with another text beside the same codes."""
OTHER_ANSWERS: Final = (
    # Nothing in the log depends on it here, and a former release starts with its own levels only.
    *(
        f"UpdateFeatures v{version}, metadata.version, {wanted}"
        for version in (1, 2)
        for wanted in ("safe", "unsafe", "to the first, safe", "to the first, unsafe")
    ),
    # A node announces its own listeners to the quorum, so those of the request are not read.
    "AddRaftVoter v0, without listeners",
    "AddRaftVoter v1, without listeners",
    "AddRaftVoter v0, another listener",
    "AddRaftVoter v1, another listener",
    # The data folders of older releases have no directory id. They can be voters.
    "AddRaftVoter v0, a zero directory",
    "AddRaftVoter v1, a zero directory",
    "RemoveRaftVoter, a zero directory",
    # VOTER_NOT_FOUND in Kafka, which tools take for success.
    "RemoveRaftVoter, the last voter",
    # Kafka's answer to an empty request ignores its fields.
    "AlterPartitionReassignments, nothing",
    "AlterPartitionReassignments, nothing, same factor",
    # One answer for each id, however often it is named.
    "DescribeTransactions, one twice",
    # Kafka's broker ends then, and the cluster with it.
    "UnregisterBroker, alive",
)


def test_the_answers_are_those_of_kafka(tmp_path: Path) -> None:
    recorded: dict[str, object] = json.loads(KAFKA_ANSWERS.read_text())
    second = tmp_path / "second"
    settings = {"node.id": str(NODE), "profile": "dev", "workers": "1", "log.dirs": str(second)}
    node = EmbeddedBroker(tmp_path / "node", settings=settings)
    try:
        node.start()
        with WireClient(node.bootstrap_servers) as wire:
            dialogue = OperationsDialogue(wire, [str(node.data), str(second)])
            answers = json.loads(json.dumps(dict(dialogue.answers())))
    finally:
        node.kill()
    assert answers.keys() == recorded.keys()
    different = {name for name, answer in answers.items() if answer != recorded[name]}
    same_words = {name for name in different if not name.startswith(OTHER_WORDS)}
    assert {name: answers[name] for name in same_words - {*OTHER_ANSWERS}} == {}
    assert same_words == {*OTHER_ANSWERS}, "some are as Kafka's now"
    for name in different - same_words:
        assert without_text(answers[name]) == without_text(recorded[name]), name


def without_text(answer: object) -> object:
    """An answer without its error messages."""
    if isinstance(answer, dict):
        return {key: without_text(value) for key, value in answer.items() if key != "error_message"}
    if isinstance(answer, list):
        is_code_with_text = len(answer) == 2 and isinstance(answer[0], int)
        return answer[:1] if is_code_with_text else [without_text(each) for each in answer]
    return answer
