"""A node whose children are stand-ins: real processes that talk to the supervisor and do no work.

As a script it is either the node (`stand_in_node.py node SPEC`) or one child of it
(`stand_in_node.py child CONFIG NAME BEHAVIOUR`). Each event is one line of `events` in the data
folder. A file `<name>.behaviour` in the data folder changes the behaviour between two starts of a
child.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from odradek.node import config_watch, orphans, supervisor
from odradek.node.child import ChildPlan, ChildTimeouts
from odradek.node.config import NodeConfig, load
from odradek.node.config_sources import ConfigurationError
from odradek.node.config_watch import ConfigFileWatch
from odradek.node.metrics.registry import Sample
from odradek.node.observability import (
    CatchUpReport,
    ChangeLogLevels,
    ListenerReport,
    ProcessReady,
    ResizeWorkers,
    ShutdownAllowed,
    SupervisorLink,
)
from odradek.node.structured_log import configure_logging


def note(config: NodeConfig, event: str) -> None:
    """Append a line to the events; a single write, so that processes do not mix theirs."""
    file = os.open(config.data_folder / "events", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{event}\n".encode())
    os.close(file)


def wish_workers(config: NodeConfig, link: SupervisorLink) -> None:
    """Run the number of workers that a test has written into a file."""
    wish = config.data_folder / "wanted-workers"
    if wish.exists():
        link.send(ResizeWorkers(int(wish.read_text())))
        wish.unlink()


def change_levels(config: NodeConfig, link: SupervisorLink) -> None:
    """Ask for the log levels that a test has written into a file."""
    wanted = config.data_folder / "wanted-levels"
    if wanted.exists():
        link.send(ChangeLogLevels(7, json.loads(wanted.read_text())))
        wanted.unlink()


def run_child(config_path: Path, name: str, behaviour: str) -> int:
    config = NodeConfig.load_json(config_path)
    configure_logging(config, name)
    override = config.data_folder / f"{name}.behaviour"
    if override.exists():
        behaviour = override.read_text()
    note(config, f"{name} starts {os.getpid()}")
    if behaviour == "fails":
        return 3
    link = SupervisorLink.connect(name, config_path)

    def check(candidate: NodeConfig) -> None:
        note(config, f"{name} is prepared with {candidate.arena_bytes >> 20}")
        if behaviour == "refuses":
            raise ConfigurationError("arena.bytes is too much")

    link.wait_for_turn(check)
    config = NodeConfig.load_json(config_path)
    if behaviour.startswith("dies with ") and config.arena_bytes >> 20 == int(behaviour[10:]):
        note(config, f"{name} dies")
        return 4
    with link:
        note(config, f"{name} runs with {config.arena_bytes >> 20}")
        link.metrics.samples(
            lambda: [
                Sample("odradek_stand_ins", "gauge", "Turns", 1, (("kind", "a"),)),
                Sample("odradek_stand_ins", "gauge", "Turns", 2, (("kind", 'b"'),)),
            ]
        )
        if behaviour == "catches up":
            link.send(CatchUpReport("2 replicas are not in sync yet: a-0, a-1"))
        if behaviour != "never ready":
            ports = {listener.name: listener.port or 40_000 for listener in config.listeners}
            link.send(ProcessReady({"ports": ports} if name.startswith("router") else {}))
        link.on_configuration = lambda changed: note(
            config, f"{name} has levels {sorted(changed.log_levels.items())}"
        )
        link.on_log_levels_changed = lambda answer: note(
            config, f"{name} is answered {answer.request_id}{answer.problem}"
        )
        has_left = has_reported = False
        while not link.poll():
            if link.is_in_controlled_shutdown and not has_left:
                has_left = True
                note(config, f"{name} leaves")
                if behaviour == "releases":
                    link.send(ShutdownAllowed())
            if name == "controller":
                wish_workers(config, link)
            caught_up = config.data_folder / "caught-up"
            if behaviour == "catches up" and caught_up.exists():
                caught_up.unlink()
                link.send(CatchUpReport(""))
                link.send(CatchUpReport("1 replicas are not in sync yet: a-0"))
                note(config, f"{name} has caught up")
            if name == "router-0":
                change_levels(config, link)
            if behaviour == "refuses clients" and not has_reported:
                link.send(ListenerReport(["listener A: its certificate has expired"], False))
                has_reported = True
            if behaviour == "hangs":
                note(config, f"{name} hangs")
                signal.pause()
            time.sleep(0.005)
        note(config, f"{name} stops")
        if behaviour == "does not stop":
            signal.pause()
    note(config, f"{name} ends")
    return 0


def run_node(spec: dict[str, object]) -> int:
    options = spec["options"]
    children = spec["children"]
    timeouts = spec["timeouts"]
    assert isinstance(options, dict)
    assert isinstance(children, list)
    assert isinstance(timeouts, dict)

    def plan(config: NodeConfig, config_path: Path) -> list[ChildPlan]:
        script = [sys.executable, __file__, "child", str(config_path)]
        wanted = children
        if config.configured_worker_count:
            wanted = [child for child in children if not child[0].startswith("worker-")]
            wanted += [(f"worker-{n}", "works", 1) for n in range(config.worker_count)]
        return [
            ChildPlan(name, [*script, name, behaviour], stop_round)
            for name, behaviour, stop_round in wanted
        ]

    try:
        file = Path(str(spec["file"])) if spec.get("file") else None

        def read() -> NodeConfig:
            return load(file=file, options=options)

        # Tests do not wait for the second look at a changed file.
        config_watch.LOOK_S = 0.1
        # As in a container: whatever the supervisor does not know, it reaps.
        orphans.INIT_PROCESS_ID = os.getpid()
        config = read()
        return supervisor.run(
            config,
            plan=plan,
            timeouts=ChildTimeouts(**timeouts),
            watch=ConfigFileWatch(file, read, config),
        )
    except ConfigurationError as fault:
        print(fault, file=sys.stderr)  # noqa: T201 - a script
        return 2


if __name__ == "__main__":
    if sys.argv[1] == "child":
        sys.exit(run_child(Path(sys.argv[2]), sys.argv[3], sys.argv[4]))
    sys.exit(run_node(json.loads(sys.argv[2])))
