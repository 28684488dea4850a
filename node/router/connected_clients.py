"""The clients that are connected to this router: who they are, as they say in ApiVersions
(KIP-511).

A connection without ApiVersions of version 3 or later has no software name. One small object for a
connection; names that all clients of a kind have are shared. Called by handlers/api_versions.py,
read by telemetry and DescribeClients.
"""

import sys
from collections.abc import Iterator
from typing import Final, NamedTuple

NAME_LENGTH_MAX: Final = 256
"""Longer names are cut: a connection must not cost more than a few hundred bytes."""


class ConnectedClient(NamedTuple):
    """One connection of a client. `since_ms` is wall clock."""

    client_id: str
    software_name: str
    software_version: str
    host: str
    port: int
    since_ms: int


class ConnectedClients:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._by_connection: dict[int, ConnectedClient] = {}

    def __len__(self) -> int:
        return len(self._by_connection)

    def __iter__(self) -> Iterator[ConnectedClient]:
        return iter(list(self._by_connection.values()))

    def add(self, connection_id: int, client: ConnectedClient) -> None:
        """What the client on a connection says of itself; the last word counts."""
        self._by_connection[connection_id] = client._replace(
            client_id=sys.intern(client.client_id[:NAME_LENGTH_MAX]),
            software_name=sys.intern(client.software_name[:NAME_LENGTH_MAX]),
            software_version=sys.intern(client.software_version[:NAME_LENGTH_MAX]),
        )

    def of(self, connection_id: int) -> ConnectedClient | None:
        """The client on a connection; None if it has said nothing."""
        return self._by_connection.get(connection_id)

    def remove(self, connection_id: int) -> None:
        """The connection is closed."""
        self._by_connection.pop(connection_id, None)
