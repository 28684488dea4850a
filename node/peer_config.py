"""The settings of a node about the other nodes of its cluster: ids, addresses, and the secret.

`peers` lists the bootstrap voters as id@host:port, this node among them, and is the same on each of
them. A node that joins later names addresses of some members in `join`. A node with neither is a
cluster of one; with `peer.listen` others may join it. Called by config.py.
"""

import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

SECRET_LENGTH_MIN = 16
SECRETS_MAX = 2
"""More than two are not needed to replace one by another."""
PEERS_MAX = 9
"""More voters make every commit slower, and the quorum hardly safer."""
_PEER = re.compile(r"(?P<id>\d{1,10})@(?P<host>\[[0-9a-fA-F:.]+\]|[^\s:@\[\]]+):(?P<port>\d{1,5})")
_SEED = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^\s:@\[\]]+):(?P<port>\d{1,5})")


class PeerConfig(msgspec.Struct, frozen=True):
    """A node of the quorum and its address for the others."""

    node_id: int
    host: str
    port: int


class SeedConfig(msgspec.Struct, frozen=True):
    """The address at which a node of the cluster listens for the others."""

    host: str
    port: int


def parse_peers(text: str) -> tuple[PeerConfig, ...]:
    """`0@host:port,1@host:port,...` in any order; by ascending id."""
    peers = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        matched = _PEER.fullmatch(part)
        if matched is None:
            raise ValueError(f"{part!r} must be id@host:port, as in 0@10.0.0.1:9192")
        port = int(matched["port"])
        if not 0 < port <= 65_535:
            raise ValueError(f"{part!r} must have a port from 1 to 65535")
        peers.append(PeerConfig(int(matched["id"]), matched["host"].strip("[]"), port))
    if not peers:
        raise ValueError("Must name every node of the quorum, as in 0@a:9192,1@b:9192,2@c:9192")
    ids = [peer.node_id for peer in peers]
    for node_id in sorted(set(ids)):
        if ids.count(node_id) > 1:
            raise ValueError(f"Node {node_id} is listed twice. Give each node its own id.")
    places = [(peer.host, peer.port) for peer in peers]
    for host, port in sorted(set(places)):
        if places.count((host, port)) > 1:
            raise ValueError(f"Two nodes have the address {host}:{port}. Give each its own.")
    if len(peers) > PEERS_MAX:
        raise ValueError(f"Lists {len(peers)} nodes. A quorum has at most {PEERS_MAX} voters.")
    return tuple(sorted(peers, key=lambda peer: peer.node_id))


def parse_join(text: str) -> tuple[SeedConfig, ...]:
    """`host:port,...`, in the order given."""
    seeds = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        matched = _SEED.fullmatch(part)
        if matched is None or not 0 < int(matched["port"]) <= 65_535:
            raise ValueError(
                f"{part!r} must be host:port of a node of the cluster, as its peer.listen or its"
                " entry in peers says, as in 10.0.0.1:9192"
            )
        seeds.append(SeedConfig(matched["host"].strip("[]"), int(matched["port"])))
    if not seeds:
        raise ValueError("Must name at least one node of the cluster, as in a:9192,b:9192")
    return tuple(dict.fromkeys(seeds))


def parse_secrets(text: str) -> tuple[str, ...]:
    """The cluster's secrets, one in a line. Errors never show them."""
    secrets = tuple(filter(None, (line.strip() for line in text.splitlines())))
    if not secrets or any(len(secret) < SECRET_LENGTH_MIN for secret in secrets):
        raise ValueError(
            f"Must have at least {SECRET_LENGTH_MIN} random characters, for example from"
            " `openssl rand -base64 32`"
        )
    if len(secrets) > SECRETS_MAX or len(set(secrets)) < len(secrets):
        raise ValueError(
            "Must have one secret, or two different ones while the secret is replaced, each in a"
            " line of its own"
        )
    return secrets


def read_secrets(text: str) -> tuple[str, ...]:
    """The secrets from a file."""
    try:
        return parse_secrets(Path(text).expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"Cannot read it: {error}") from error


def cluster_errors(
    peers: Sequence[PeerConfig],
    join: Sequence[SeedConfig],
    *,
    own: PeerConfig | None,
    node_id: int,
    listen_host: str,
    has_secret: bool,
    client_ports: Sequence[int],
) -> list[str]:
    """The errors of `peers`, `join` and `peer.listen` together with the other settings.

    `own` is the address at which other nodes reach this one; None if it does not listen.
    """
    faults = []
    if peers and join:
        faults.append(
            "join: `peers` is for the bootstrap voters of a cluster, `join` for nodes added later."
            " Remove one of them."
        )
    hosts = [listen_host]
    if peers:
        setting, name = (
            f"peers={','.join(f'{p.node_id}@{p.host}:{p.port}' for p in peers)}",
            "peers",
        )
        hosts += [peer.host for peer in peers]
        if node_id not in {peer.node_id for peer in peers}:
            faults.append(
                f"{setting}: node.id={node_id} is not listed. List every node of the quorum, this"
                " one too, or set node.id."
            )
    else:
        setting = name = "peer.listen"
        if own is None:
            if join:
                faults.append("join: other nodes must reach this one. Set peer.listen=HOST:PORT.")
            return faults
        hosts += [own.host, *(seed.host for seed in join)]
        if is_wildcard_address(own.host):
            faults.append(
                "peer.listen: it is a wildcard address, which other nodes cannot use. Set"
                " peer.advertised=HOST:PORT."
            )
    open_host = next((host for host in hosts if not is_loopback(host)), None)
    if not has_secret and open_host is not None:
        faults.append(
            f"{setting}: {open_host or 'every address'} can be reached from other machines. Set"
            " cluster.secret (or cluster.secret.file) to the same value on every node, for example"
            " from `openssl rand -base64 32`."
        )
    if len(peers) != 1 and 0 in client_ports:
        faults.append(
            f"listeners: with `{name}` every listener needs a fixed port, not 0, because other"
            " nodes give it to clients"
        )
    if own is not None and own.port in client_ports:
        faults.append(f"{setting}: a listener of this node has port {own.port}. Set another port.")
    return faults


def is_wildcard_address(host: str) -> bool:
    """Whether the host stands for every address of the machine."""
    return host in ("", "0.0.0.0", "::")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address. Of names only localhost is known."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
