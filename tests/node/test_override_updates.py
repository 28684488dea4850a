"""Settings of a node that are set through the cluster take effect, and who asks is answered."""

from pathlib import Path
from typing import cast

import pytest

from odradek.node.child import Child
from odradek.node.config import NodeConfig, load
from odradek.node.configuration_rollout import ConfigurationRollout
from odradek.node.observability import ChangeSettings
from odradek.node.override_updates import ANSWER_S_MAX, OverrideUpdates
from odradek.node.process_replacement import ProcessReplacement


class AskingRouter:
    """Stands in for the child that asks."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, str]] = []

    def answer_settings(self, request_id: int, problem: str = "") -> None:
        self.answers.append((request_id, problem))


class Node:
    """Stands in for the supervisor of a node without processes."""

    def __init__(self, folder: Path) -> None:
        self.own = self.config = load(
            environment={},
            options={"data": "/data", "socket.request.max.bytes": str(8 << 20)},
        )
        self.failure: OSError | None = None
        self.replacement = ProcessReplacement(
            list,
            make_child=lambda plan: pytest.fail(str(plan)),
            plan=lambda _: [],
            candidate_path=folder / "candidate.json",
        )
        self.updates = OverrideUpdates(
            ConfigurationRollout(list),
            self.replacement,
            own=lambda: self.own,
            current=lambda: self.config,
            adopt=self.adopt,
        )
        self.router = AskingRouter()

    def adopt(self, config: NodeConfig) -> None:
        if self.failure is not None:
            raise self.failure
        self.config = config

    def ask(self, number: int, *, is_trial: bool = False, **overrides: str) -> None:
        named = {key.replace("_", "."): value for key, value in overrides.items()}
        message = ChangeSettings(number, named, is_trial)
        self.updates.ask(cast("Child", self.router), message)

    def turn(self, now: float = 0.0) -> None:
        for _ in range(4):
            if not self.replacement.is_active:
                self.updates.tick(now)
            self.replacement.turn(now)

    @property
    def answers(self) -> list[tuple[int, str]]:
        answers, self.router.answers = self.router.answers, []
        return answers


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_who_asks_is_answered_when_it_is_in_effect(node: Node) -> None:
    node.ask(1, log_level="DEBUG")
    node.turn()
    assert node.answers == []
    node.updates.want({"log.level": "DEBUG"})
    node.turn()
    assert node.answers == [(1, "")]
    assert node.config.log_level == "DEBUG"
    node.ask(2, log_level="DEBUG")
    node.turn()
    assert node.answers == [(2, "")], "it is in effect already"
    node.updates.want({"arena.bytes": str(64 << 20)})
    node.ask(3, arena_bytes=str(64 << 20))
    node.turn()
    assert node.answers == [(3, "")]
    assert (node.config.log_level, node.config.arena_bytes) == ("INFO", 64 << 20)
    node.updates.want({})
    node.ask(4)
    node.turn()
    assert node.answers == [(4, "")]
    assert node.config == node.own


def test_a_trial_changes_nothing(node: Node) -> None:
    node.ask(1, is_trial=True, arena_bytes=str(64 << 20))
    node.ask(2, is_trial=True, arena_bytes=str(15 << 20))
    node.ask(3, is_trial=True, log_level="ERROR")
    node.turn()
    (first, second, third) = node.answers
    assert (first, third) == ((1, ""), (3, ""))
    assert "arena.bytes=15728640: Must be a number of bytes from 16MiB up" in second[1]
    assert node.config == node.own


def test_what_cannot_be_in_effect_is_told_until_it_changes(node: Node) -> None:
    node.failure = OSError(28, "No space left on device")
    wanted = {"arena.bytes": str(64 << 20)}
    node.updates.want(wanted)
    node.ask(1, arena_bytes=str(64 << 20))
    node.turn()
    assert node.answers == [(1, "it cannot be stored: No space left on device")]
    assert "not in effect on this node: it cannot be stored" in node.updates.problem_text
    node.ask(2, arena_bytes=str(64 << 20))
    node.turn()
    assert node.answers == [(2, "it cannot be stored: No space left on device")]
    node.failure = None
    node.turn()
    assert node.config.settings_problem == "it cannot be stored: No space left on device"
    assert node.config.arena_bytes == node.own.arena_bytes, "it is not tried again and again"
    node.updates.want({})
    assert node.updates.problem_text == ""
    node.updates.want(wanted)
    node.turn()
    assert node.config.arena_bytes == 64 << 20
    assert (node.updates.problem_text, node.config.settings_problem) == ("", "")


def test_who_asks_for_what_does_not_come_is_answered(node: Node) -> None:
    node.ask(1, log_level="DEBUG")
    node.turn()
    assert node.answers == []
    # The clock of deadlines is the monotonic one.
    node.turn(float("inf"))
    assert node.answers == [(1, "It is stored and not in effect yet.")]
    assert ANSWER_S_MAX < 30
