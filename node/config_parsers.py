"""The parsers of a node's own settings.

Each takes the text and returns its value, or raises ValueError with the reason why it is not valid.
Called by `config`.
"""

import re
import socket
from collections.abc import Callable
from pathlib import Path

from odradek.cluster.metadata.listener_addresses import parse_host_and_port
from odradek.node.machine_defaults import ARENA_BYTES_MIN

NODE_ID_MAX = 2**31 - 1
_UNITS = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
# A Unix socket's path must fit into 108 bytes (sockaddr_un), with the socket's name behind it.
RUN_FOLDER_LENGTH_MAX = 80


def parse_count(least: int, most: int) -> Callable[[str], int]:
    """Whole numbers from `least` to `most`, both included."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"\d{1,10}", text):
            raise ValueError("Not a number of type INT")
        if int(text) < least:
            raise ValueError(f"Value must be at least {least}")
        if int(text) > most:
            raise ValueError(f"Value must be no more than {most}")
        return int(text)

    return parse


def parse_choice(*choices: str) -> Callable[[str], str]:
    """One of some words, in any case."""

    def parse(text: str) -> str:
        for choice in choices:
            if text.lower() == choice.lower():
                return choice
        raise ValueError(f"String must be one of: {', '.join(choices)}")

    return parse


def parse_router_count(text: str) -> int:
    """1: this release runs one router a node."""
    if text != "1":
        raise ValueError("This release runs one router a node. Set it to 1.")
    return 1


def parse_node_id(text: str) -> int:
    """A number, or `auto`: the one at the end of the host name, as in a StatefulSet."""
    if text == "auto":
        ordinal = re.search(r"-(\d{1,9})$", socket.gethostname().partition(".")[0])
        if ordinal is None:
            raise ValueError(
                f"The host name {socket.gethostname()!r} does not end in a number, as in broker-0"
            )
        return int(ordinal[1])
    return parse_count(0, NODE_ID_MAX)(text)


def parse_cluster_id(text: str) -> str:
    """Kafka's ids are 22 characters of URL-safe Base64; others are accepted."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", text):
        raise ValueError("Must be 1 to 64 letters, digits, dots, dashes or underscores")
    return text


def parse_folder(text: str) -> Path:
    """An absolute path; `~` is the home of this user."""
    if not text:
        raise ValueError("Must be the path of a folder")
    if "," in text:
        raise ValueError("Must be one folder. Name further log directories in log.dirs")
    return Path(text).expanduser().absolute()


def parse_folders(text: str) -> tuple[Path, ...]:
    """Different absolute paths, none of them within another."""
    folders = tuple(parse_folder(part.strip()) for part in text.split(","))
    for folder in folders:
        if folders.count(folder) > 1:
            raise ValueError(f"{folder} occurs twice")
        inside = next((each for each in folders if each in folder.parents), None)
        if inside is not None:
            raise ValueError(f"{folder} is within {inside}")
    return folders


def parse_run_folder(text: str) -> str:
    """A path short enough for the sockets in it."""
    path = str(parse_folder(text))
    if len(path) > RUN_FOLDER_LENGTH_MAX:
        raise ValueError(
            f"Must be shorter than {RUN_FOLDER_LENGTH_MAX} characters: it holds Unix sockets"
        )
    return path


def parse_arena_bytes(text: str) -> int:
    """A number of bytes, or of KiB, MiB or GiB."""
    matched = re.fullmatch(r"(\d{1,15})\s*([kmg]ib)?", text.lower())
    size = int(matched[1]) * _UNITS[matched[2] or ""] if matched else 0
    if size < ARENA_BYTES_MIN:
        raise ValueError("Must be a number of bytes from 16MiB up, for example 256MiB or 1GiB")
    return size


def parse_peer_listen(text: str) -> tuple[str, int]:
    """`host:port` with a fixed port."""
    host, port = parse_host_and_port(text)
    if not port:
        raise ValueError("Must have a fixed port, at which other nodes reach this one")
    return host, port
