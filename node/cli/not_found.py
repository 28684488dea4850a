"""The error for a name that does not exist: `NAME: no such topic; did you mean OTHER?`.

All commands use it for topics, groups, transactional ids, nodes and features, and exit with 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Final

import click

from odradek.node.cli.cluster_client import ClusterClient, RequestResult, error_text
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import ListGroupsRequest
from odradek.protocol.messages.transactions import ListTransactionsRequest

TOPIC: Final = "topic"
GROUP: Final = "group"
TRANSACTIONAL_ID: Final = "transactional id"
NODE: Final = "node"
FEATURE: Final = "feature"
SIMILARITY_MIN: Final = 0.75
"""Of a name that is suggested: a slip or two. Names that only begin alike are less similar."""
_CODES: Final[Mapping[str, ErrorCode]] = {
    TOPIC: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    GROUP: ErrorCode.GROUP_ID_NOT_FOUND,
    TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
}
"""The error with which a broker says that there is none of this name."""


def not_found_text(client: ClusterClient, kind: str, name: str) -> str:
    """`no such topic`, with the nearest name that exists, if one is near."""
    return _text(kind, name, _existing_names(client, kind))


def not_found(client: ClusterClient, kind: str, name: str) -> click.ClickException:
    """The error of a command that needs this name."""
    return click.ClickException(f"{name}: {not_found_text(client, kind, name)}")


def not_found_among(kind: str, name: str, names: Iterable[str]) -> click.ClickException:
    """As `not_found`, where the names that exist are known already."""
    return click.ClickException(f"{name}: {_text(kind, name, names)}")


def no_such_node(node_id: int, known: Iterable[int]) -> click.ClickException:
    """The error for a node that is not among those of the cluster."""
    ids = ", ".join(map(str, sorted(known)))
    return click.ClickException(f"{node_id}: no such {NODE}; the cluster has {ids or 'none'}")


def no_such_partition(
    topic: str, numbers: Iterable[int], partition_count: int
) -> click.ClickException:
    """The error for partitions that a topic does not have."""
    names = ", ".join(f"{topic}-{number}" for number in sorted(numbers))
    return click.ClickException(
        f"{names}: no such partition; {topic} has partitions 0 to {partition_count - 1}"
    )


def refusal_text(client: ClusterClient, kind: str, name: str, result: RequestResult) -> str:
    """Why a request about a name was refused: it does not exist, or the error's text."""
    if result.error_code == _CODES[kind]:
        return not_found_text(client, kind, name)
    return error_text(result)


def raise_refusal(client: ClusterClient, kind: str, name: str, result: RequestResult) -> None:
    """ClickException that begins with the name, if the result is an error."""
    if result.error_code:
        raise click.ClickException(f"{name}: {refusal_text(client, kind, name, result)}")


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant; None if no name is near. Case does not count."""
    by_lower = {each.lower(): each for each in sorted(names, reverse=True) if each != name}
    found = get_close_matches(name.lower(), by_lower, n=1, cutoff=SIMILARITY_MIN)
    return by_lower[found[0]] if found else None


def _text(kind: str, name: str, names: Iterable[str]) -> str:
    nearest = nearest_name(name, names)
    return f"no such {kind}" + (f"; did you mean {nearest}?" if nearest is not None else "")


def _existing_names(client: ClusterClient, kind: str) -> set[str]:
    """Empty if the cluster does not tell."""
    try:
        return _LISTS[kind](client)
    except click.ClickException:
        return set()


def topic_names(client: ClusterClient) -> set[str]:
    """The topics that this client may see."""
    return {topic.name for topic in client.metadata(None).topics if topic.name}


def group_names(client: ClusterClient) -> set[str]:
    """The groups that the brokers list; a broker that does not answer lists none."""
    client.metadata()
    listed = (client.ask_node(broker_id, ListGroupsRequest()) for broker_id in client.broker_ids)
    return {group.group_id for answer in listed if answer is not None for group in answer.groups}


def _transactional_ids(client: ClusterClient) -> set[str]:
    client.metadata()
    listed = (client.ask_node(each, ListTransactionsRequest()) for each in client.broker_ids)
    return {
        state.transactional_id
        for answer in listed
        if answer is not None
        for state in answer.transaction_states
    }


_LISTS: Final[Mapping[str, Callable[[ClusterClient], set[str]]]] = {
    TOPIC: topic_names,
    GROUP: group_names,
    TRANSACTIONAL_ID: _transactional_ids,
}
