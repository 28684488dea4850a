"""The clients that are connected to a router."""

from odradek.node.router.connected_clients import (
    NAME_LENGTH_MAX,
    ConnectedClient,
    ConnectedClients,
)

CLIENT = ConnectedClient("c", "java", "4.3", "127.0.0.1", 50_000, 7)


def test_a_client_is_known_while_it_is_connected() -> None:
    clients = ConnectedClients()
    clients.add(1, CLIENT)
    clients.add(1, CLIENT._replace(client_id="renamed"))
    clients.add(2, CLIENT)
    assert clients.of(1) == CLIENT._replace(client_id="renamed")
    assert len(list(clients)) == len(clients) == 2
    clients.remove(1)
    clients.remove(1)
    assert clients.of(1) is None
    assert list(clients) == [CLIENT]


def test_long_names_are_cut() -> None:
    clients = ConnectedClients()
    clients.add(1, ConnectedClient("i" * 999, "n" * 999, "v" * 999, "h", 1, 0))
    kept = clients.of(1)
    assert kept is not None
    assert {len(each) for each in kept[:3]} == {NAME_LENGTH_MAX}
