"""The simulation itself: clock, network, disk, crashes, and the report of a failure."""

from random import Random

import pytest

from tests.simulation.disk import Disk
from tests.simulation.network import Network
from tests.simulation.simulation import Simulation, SimulationFailure, Violation


class Echo:
    """A host that answers its messages, and wakes up every 100 ms."""

    def __init__(self, simulation: Simulation, own_id: int, peer: int) -> None:
        self.simulation = simulation
        self.own_id = own_id
        self.peer = peer
        self.heard: list[tuple[int, object]] = []
        self.woken: list[int] = []
        self.start_count = 0

    def start(self) -> None:
        self.start_count += 1
        self.heard = []
        self._deadline_ms = self.simulation.now_ms + 100

    def crash(self) -> None:
        self.heard = []

    def receive(self, message: object) -> None:
        self.heard.append((self.simulation.now_ms, message))
        if isinstance(message, int) and message > 0:
            self.simulation.send(self.own_id, self.peer, message - 1)

    def wake(self) -> None:
        self.woken.append(self.simulation.now_ms)
        self._deadline_ms = self.simulation.now_ms + 100

    def next_deadline_ms(self) -> int:
        return self._deadline_ms


def pair(seed: int = 1) -> tuple[Simulation, Echo, Echo]:
    simulation = Simulation(seed)
    first, second = Echo(simulation, 1, 2), Echo(simulation, 2, 1)
    simulation.add_host(1, first)
    simulation.add_host(2, second)
    return simulation, first, second


def test_messages_arrive_later_and_hosts_wake_when_they_want_to() -> None:
    simulation, first, second = pair()
    simulation.send(1, 2, 3)
    simulation.run(1_000)
    assert [message for _, message in second.heard] == [3, 1]
    assert [message for _, message in first.heard] == [2, 0]
    assert all(at_ms > 0 for at_ms, _ in first.heard + second.heard)
    assert first.woken == list(range(100, 1_001, 100))


def test_a_crash_loses_what_is_under_way_and_a_start_begins_anew() -> None:
    simulation, _, second = pair()
    simulation.send(1, 2, 0)
    simulation.crash(2)
    simulation.run(500)
    assert second.woken == []
    simulation.start(2)
    simulation.run(500)
    assert second.heard == []
    assert second.start_count == 2
    assert second.woken[0] == 600


def test_what_arrives_at_a_stopped_host_waits() -> None:
    simulation, _, second = pair()
    simulation.stop(2, 300)
    simulation.send(1, 2, 0)
    simulation.run(299)
    assert second.heard == []
    simulation.run(100)
    assert [message for _, message in second.heard] == [0]


def test_a_cut_is_one_way_and_a_split_both() -> None:
    network = Network(Random(1))
    network.cut([1], [2])
    assert network.delays_ms(1, 2) == []
    assert len(network.delays_ms(2, 1)) == 1
    network.heal()
    network.split([1], [2, 3])
    assert network.is_cut(1, 3)
    assert network.is_cut(3, 1)
    assert not network.is_cut(2, 3)


def test_a_network_drops_doubles_and_reorders() -> None:
    network = Network(Random(1))
    network.drop_share = network.double_share = 0.3
    copies = [network.delays_ms(1, 2) for _ in range(1_000)]
    assert 200 < sum(not delays for delays in copies) < 400
    assert 130 < sum(len(delays) == 2 for delays in copies) < 300
    assert max(delay for delays in copies for delay in delays) > network.delay_ms_max


def test_a_disk_has_what_was_finished_and_of_the_rest_a_prefix() -> None:
    kept = set()
    for seed in range(50):
        disk: Disk[list[int]] = Disk([], Random(seed))
        for number in range(4):
            disk.begin(lambda state, number=number: state.append(number))  # type: ignore[misc]  # a default binds it
        disk.finish()
        disk.crash()
        assert disk.state == list(range(len(disk.state)))
        kept.add(len(disk.state))
    assert kept == {1, 2, 3, 4}


def test_checks_see_every_event_and_a_violation_names_its_seed() -> None:
    simulation, first, _ = pair(seed=77)

    def check(host_id: int) -> None:
        if host_id == 1 and first.heard:
            raise Violation("it has heard something")

    simulation.checks.append(check)
    simulation.send(2, 1, 0)
    with pytest.raises(SimulationFailure, match=r"(?s)seed 77, .*heard something.*SIM_SEED=77"):
        simulation.run(1_000)
