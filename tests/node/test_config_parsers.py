"""Parsing the settings of a node, and the errors."""

from collections.abc import Callable
from pathlib import Path

import pytest

from odradek.node.config_parsers import (
    NODE_ID_MAX,
    RUN_FOLDER_LENGTH_MAX,
    parse_arena_bytes,
    parse_choice,
    parse_cluster_id,
    parse_count,
    parse_folder,
    parse_node_id,
    parse_peer_listen,
    parse_router_count,
    parse_run_folder,
)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_count(1, 64), "64", 64),
        (parse_choice("INFO", "ERROR"), "error", "ERROR"),
        (parse_router_count, "1", 1),
        (parse_node_id, str(NODE_ID_MAX), NODE_ID_MAX),
        (parse_cluster_id, "Lx_3-a.b", "Lx_3-a.b"),
        (parse_folder, "/a/b", Path("/a/b")),
        (parse_run_folder, "/run/" + "x" * (RUN_FOLDER_LENGTH_MAX - 5), "/run/" + "x" * 75),
        (parse_arena_bytes, "16777216", 16 << 20),
        (parse_arena_bytes, "2 GiB", 2 << 30),
        (parse_peer_listen, "10.0.0.1:9191", ("10.0.0.1", 9191)),
    ],
)
def test_texts_are_parsed(parse: Callable[[str], object], text: str, value: object) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "right"),
    [
        (parse_count(1, 64), "65", "Value must be no more than 64"),
        (parse_count(5, 9), "4", "Value must be at least 5"),
        (parse_count(0, 9), "-1", "Not a number of type INT"),
        (parse_choice("a", "b"), "c", "String must be one of: a, b"),
        (parse_router_count, "2", "one router a node"),
        (parse_node_id, str(NODE_ID_MAX + 1), "Value must be no more than 2147483647"),
        (parse_cluster_id, "our cluster", "letters, digits"),
        (parse_folder, "", "path of a folder"),
        (parse_folder, "/a,/b", "one folder"),
        (parse_run_folder, "/tmp/" + "x" * 100, "shorter than 80"),
        (parse_arena_bytes, "15MiB", "from 16MiB up"),
        (parse_arena_bytes, "much", "number of bytes"),
        (parse_peer_listen, "localhost:0", "a fixed port"),
    ],
)
def test_errors_say_what_is_valid(parse: Callable[[str], object], text: str, right: str) -> None:
    with pytest.raises(ValueError, match=right):
        parse(text)


def test_a_node_may_take_its_id_from_its_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "odradek-12.brokers.default.svc")
    assert parse_node_id("auto") == 12
    monkeypatch.setattr("socket.gethostname", lambda: "laptop")
    with pytest.raises(ValueError, match="does not end in a number"):
        parse_node_id("auto")
