"""A process with one member of stock raftos, over UDP on loopback, that writes whenever it leads.

    python -m tests.raft_comparison.raftos_process FOLDER OWN_PORT OTHER_PORT OTHER_PORT

Says on its standard output, a line each, "leads", and the names of the entries that raftos has told
it are written: "PORT-NUMBER". One after the other: concurrent ones would not be answered.
"""

import asyncio
import sys

from tests.raft_comparison.raftos_shims import import_raftos
from tests.raft_comparison.scenarios import ELECTION_MS, HEARTBEAT_MS

HOST = "127.0.0.1"


def say(line: str) -> None:
    """Print at once: the reader may kill this process next."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def run(folder: str, own_port: str, other_ports: list[str]) -> None:
    """Run for ever."""
    raftos = import_raftos()
    leads = asyncio.Event()
    raftos.configure(
        {
            "log_path": f"{folder}/",
            "serializer": raftos.serializers.JSONSerializer,
            "heartbeat_interval": HEARTBEAT_MS / 1_000,
            "step_down_missed_heartbeats": ELECTION_MS // HEARTBEAT_MS,
            "on_leader": leads.set,
            "on_follower": leads.clear,
        }
    )
    own = f"{HOST}:{own_port}"
    await raftos.register(own, cluster=[own, *(f"{HOST}:{port}" for port in other_ports)])
    number = 0
    while True:
        await leads.wait()
        say("leads")
        while leads.is_set():
            number += 1
            await raftos.State.set_value(f"{own_port}-{number}", "set")
            say(f"{own_port}-{number}")


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], sys.argv[3:]))
