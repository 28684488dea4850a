"""A worker spins for a client's next request while that saves more time than it costs CPU, by
clocks that the test sets."""

from itertools import groupby
from time import process_time

import pytest

from odradek.node.worker.turnaround_spin import (
    CHANGE_S,
    CPU_MAX,
    CPU_MAX_TO_GO_ON,
    KEPT_REQUESTS_MAX,
    KEPT_REQUESTS_MIN,
    PAUSE_S,
    PAUSES_MAX,
    PROCESSORS_MIN,
    REQUEST_S_MAX,
    SPIN_PER_REQUEST,
    TIME_MAX,
    TIME_MAX_TO_GO_ON,
    TRIED_REQUESTS,
    SpinTrial,
    TurnaroundSpin,
)

TRIAL = 3 * TRIED_REQUESTS
STEP_S = 1e-6
"""What a look takes."""
EVENTS = [(7, 1)]


class Client:
    """A client that sends its next request `turnaround_s` after the response, and a machine where
    the worker takes `request_s` for it. To sleep takes `wakeup_s`, and so much of its CPU."""

    def __init__(
        self,
        turnaround_s: float,
        *,
        request_s: float = 40e-6,
        wakeup_s: float = 40e-6,
        processors: int = PROCESSORS_MIN,
        slowed_s: float = 0.0,
    ) -> None:
        """By `slowed_s` a spin makes the client slower."""
        self.now_s = self.used_s = 100.0
        self.sends_s = 0.0
        self.turnaround_s = turnaround_s
        self.request_s = request_s
        self.wakeup_s = wakeup_s
        self.slowed_s = slowed_s
        self.offers = 0
        self.has_ring_requests = False
        self.spin = TurnaroundSpin(
            lambda: self.has_ring_requests,
            processors,
            clock=lambda: self.now_s,
            used_s=lambda: self.used_s,
            offer_processor=self.offer,
        )

    def offer(self) -> None:
        self.offers += 1

    def look(self) -> list[tuple[int, int]] | None:
        self.now_s += STEP_S
        self.used_s += STEP_S
        return EVENTS if self.now_s >= self.sends_s else None

    def ask(self) -> bool:
        """One request. Whether a spin has found it."""
        self.now_s += self.request_s
        self.used_s += self.request_s
        answered_s = self.now_s
        self.sends_s = answered_s + self.turnaround_s
        found = self.spin.run(self.look, self.request_s)
        if self.now_s > answered_s:
            self.sends_s += self.slowed_s
        if found is not None:
            self.now_s = max(self.now_s, self.sends_s)
            return True
        self.now_s = max(self.now_s, self.sends_s) + self.wakeup_s
        self.used_s += self.wakeup_s
        return False

    def count_found(self, requests: int) -> int:
        return sum(self.ask() for _ in range(requests))


def test_a_client_that_comes_back_at_once_is_waited_for() -> None:
    client = Client(turnaround_s=40e-6)
    client.count_found(TRIAL + 1)
    assert client.count_found(KEPT_REQUESTS_MIN - 1) == KEPT_REQUESTS_MIN - 1


def test_trials_become_rare_while_they_say_the_same() -> None:
    client = Client(turnaround_s=40e-6)
    client.count_found(2 * KEPT_REQUESTS_MAX)
    rounds = 10 * (KEPT_REQUESTS_MAX + TRIAL)
    slept = rounds - client.count_found(rounds)
    assert 18 * TRIED_REQUESTS <= slept <= 20 * TRIED_REQUESTS


@pytest.mark.parametrize(
    "client",
    [
        Client(turnaround_s=40e-6, wakeup_s=2e-6),
        Client(turnaround_s=40e-6, slowed_s=80e-6),
        Client(turnaround_s=500e-6),
        Client(turnaround_s=40e-6, processors=PROCESSORS_MIN - 1),
    ],
    ids=["sleeping is cheap", "the client needs the processor", "it is slow", "one processor"],
)
def test_nothing_spins_where_that_does_not_pay(client: Client) -> None:
    """But for the trials."""
    client.count_found(2 * KEPT_REQUESTS_MAX)
    spun_s = client.spin.spun_s
    rounds, trials = 4 * (KEPT_REQUESTS_MAX + TRIAL), 5
    assert client.count_found(rounds) <= trials * TRIED_REQUESTS
    tried_s = trials * TRIED_REQUESTS * (client.spin.duration_s + STEP_S)
    assert client.spin.spun_s - spun_s <= tried_s


def test_a_client_that_becomes_slower_is_no_longer_waited_for() -> None:
    client = Client(turnaround_s=40e-6)
    client.count_found(KEPT_REQUESTS_MAX)
    client.turnaround_s = 400e-6
    spun_s = client.spin.spun_s
    client.count_found(KEPT_REQUESTS_MIN)
    # Also before a trial says so.
    assert client.spin.spun_s - spun_s < 0.05 * KEPT_REQUESTS_MIN * client.spin.duration_s
    client.count_found(2 * KEPT_REQUESTS_MAX)
    spun_s = client.spin.spun_s
    client.count_found(KEPT_REQUESTS_MIN)
    assert client.spin.spun_s - spun_s < KEPT_REQUESTS_MIN * STEP_S


def test_after_a_pause_it_may_be_another_client() -> None:
    """What has paid with the last one is not kept for this one."""
    client = Client(turnaround_s=40e-6)
    client.count_found(2 * KEPT_REQUESTS_MAX)
    client.now_s += 2 * CHANGE_S
    assert client.count_found(TRIAL + 1) <= TRIED_REQUESTS + 2


def test_frequent_pauses_end_a_trial() -> None:
    """In which no part is completed between two of them; it does not end with spins that slow the
    client down."""
    client = Client(turnaround_s=40e-6, slowed_s=80e-6)
    client.count_found(TRIED_REQUESTS + 10)
    burst = TRIED_REQUESTS - 2
    found = 0
    for _ in range(KEPT_REQUESTS_MIN):
        client.now_s += 2 * PAUSE_S
        found += client.count_found(burst)
    assert 0 < found <= (PAUSES_MAX + 1) * burst


def test_a_client_that_pauses_is_not_compared() -> None:
    client = Client(turnaround_s=2 * PAUSE_S)
    assert client.count_found(10 * KEPT_REQUESTS_MAX) == 0
    assert client.spin.spun_s == 0


@pytest.mark.parametrize("request_s", [20e-6, 40e-6, 100e-6, 2 * REQUEST_S_MAX])
def test_a_spin_lasts_a_multiple_of_a_request(request_s: float) -> None:
    client = Client(turnaround_s=request_s, request_s=request_s, wakeup_s=2 * request_s)
    client.count_found(KEPT_REQUESTS_MAX)
    expected_s = SPIN_PER_REQUEST * min(request_s, REQUEST_S_MAX)
    assert client.spin.duration_s == pytest.approx(expected_s, rel=0.1)


def test_requests_of_routers_end_a_spin_at_once() -> None:
    client = Client(turnaround_s=40e-6)
    client.count_found(TRIAL + 10)
    client.has_ring_requests = True
    before_s = client.now_s
    assert client.spin.run(client.look, client.request_s) == []
    assert client.now_s == before_s


def test_the_processor_is_offered_and_what_a_spin_takes_is_not_work() -> None:
    client = Client(turnaround_s=40e-6)
    client.count_found(TRIAL + 10)
    spun_s, offers = client.spin.spun_s, client.offers
    count = 100
    client.count_found(count)
    looks = 40
    assert client.offers - offers == pytest.approx(count * looks, rel=0.1)
    assert client.spin.spun_s - spun_s == pytest.approx(count * looks * STEP_S, rel=0.1)
    client.spin.spun_s = 50.0
    assert client.spin.working_s() == pytest.approx(process_time() - 50.0, abs=0.5)


def test_requests_that_had_to_wake_up_do_not_make_spins_longer() -> None:
    spin = TurnaroundSpin(lambda: False, PROCESSORS_MIN)
    for _ in range(1_000):
        spin.run(lambda: None, 40e-6)
        spin.run(lambda: None, 100e-6)
    assert SPIN_PER_REQUEST * 40e-6 < spin.duration_s < SPIN_PER_REQUEST * 50e-6
    for _ in range(1_000):
        spin.run(lambda: None, 100e-6)
    assert spin.duration_s > SPIN_PER_REQUEST * 90e-6


class Machine:
    """Requests whose time and CPU time are `time` and `cpu` times as long with spins."""

    def __init__(self, time: float, cpu: float) -> None:
        self.time, self.cpu = time, cpu
        self.time_growth = self.cpu_growth = 1.0
        """By which each request takes longer than the one before."""
        self.trial = SpinTrial(lambda: self._used_s)
        self._now_s, self._used_s, self._request_s, self._cpu_s = 10.0, 0.0, 1e-4, 5e-5

    def serve(self, requests: int) -> list[bool]:
        """Whether each of the requests after these could spin."""
        modes = []
        for _ in range(requests):
            self._request_s *= self.time_growth
            self._cpu_s *= self.cpu_growth
            is_spinning = self.trial.is_spinning
            self._now_s += self._request_s * (self.time if is_spinning else 1.0)
            self._used_s += self._cpu_s * (self.cpu if is_spinning else 1.0)
            self.trial.observe(self._now_s)
            modes.append(self.trial.is_spinning)
        return modes

    def pause(self, seconds: float) -> None:
        self._now_s += seconds


@pytest.mark.parametrize(
    ("time", "cpu", "pays"),
    [
        (TIME_MAX - 0.01, CPU_MAX - 0.01, True),
        (TIME_MAX + 0.01, CPU_MAX - 0.01, False),
        (TIME_MAX - 0.01, CPU_MAX + 0.01, False),
        (0.5, 1.5, False),
        (1.5, 0.5, False),
    ],
)
def test_a_spin_saves_time_for_little_more_cpu(time: float, cpu: float, *, pays: bool) -> None:
    modes = Machine(time, cpu).serve(TRIAL + KEPT_REQUESTS_MIN // 2)
    assert not any(modes[: TRIED_REQUESTS - 1])
    assert modes[-1] is pays


def test_noise_does_not_turn_off_what_has_paid() -> None:
    """More is asked of what begins than of what goes on."""
    machine = Machine(0.5, 1.0)
    assert machine.serve(TRIAL + 2)[-1]
    machine.time, machine.cpu = TIME_MAX_TO_GO_ON - 0.01, CPU_MAX_TO_GO_ON - 0.01
    assert sum(machine.serve(10 * KEPT_REQUESTS_MIN)) > 8 * KEPT_REQUESTS_MIN


@pytest.mark.parametrize(
    ("time", "cpu"), [(TIME_MAX_TO_GO_ON + 0.01, 1.0), (0.5, CPU_MAX_TO_GO_ON + 0.01)]
)
def test_what_no_longer_pays_ends(time: float, cpu: float) -> None:
    machine = Machine(0.5, 1.0)
    assert machine.serve(TRIAL + 2)[-1]
    machine.time, machine.cpu = time, cpu
    assert sum(machine.serve(10 * KEPT_REQUESTS_MIN)) < 2 * KEPT_REQUESTS_MIN


@pytest.mark.parametrize("growth", [0.995, 1.005], ids=["warms up", "gets slower"])
@pytest.mark.parametrize(("time", "cpu"), [(1.0, 1.0), (0.5, CPU_MAX + 0.1)], ids=["time", "CPU"])
def test_a_client_that_changes_by_itself_proves_nothing(
    time: float, cpu: float, growth: float
) -> None:
    """It does so during the trial, and not because of the spins."""
    machine = Machine(time, cpu)
    if time == 1:
        machine.time_growth = growth
    else:
        machine.cpu_growth = growth
    assert sum(machine.serve(TRIAL + KEPT_REQUESTS_MIN)) == TRIED_REQUESTS


def test_single_slow_requests_prove_nothing() -> None:
    machine = Machine(0.5, 1.0)
    for _ in range(TRIAL // 20 + 1):
        if machine.serve(20)[-1]:
            machine.pause(PAUSE_S / 2)
    assert machine.serve(KEPT_REQUESTS_MIN // 2)[-1]


def test_after_another_verdict_the_next_trial_is_soon() -> None:
    machine = Machine(0.5, 1.0)
    machine.serve(4 * KEPT_REQUESTS_MAX)
    machine.cpu = 2.0
    modes = machine.serve(3 * KEPT_REQUESTS_MAX)
    asleep = [len(list(run)) for is_spinning, run in groupby(modes) if not is_spinning]
    between_trials = [count - 2 * TRIED_REQUESTS for count in asleep if count > 2 * TRIED_REQUESTS]
    expected = [KEPT_REQUESTS_MIN, 2 * KEPT_REQUESTS_MIN, 4 * KEPT_REQUESTS_MIN]
    assert between_trials[:3] == pytest.approx(expected, abs=2)


def test_of_another_client_as_much_is_asked_as_of_the_first() -> None:
    machine = Machine(0.5, 1.0)
    machine.serve(TRIAL + KEPT_REQUESTS_MIN // 2)
    machine.time = TIME_MAX + 0.05
    machine.pause(2 * CHANGE_S)
    assert machine.serve(TRIAL + 10)[-1] is False


def test_two_clients_are_not_compared_with_each_other() -> None:
    """The second one comes when the first part of a trial is over, and is faster by itself."""
    machine = Machine(1.0, 1.0)
    machine.serve(TRIED_REQUESTS + 10)
    machine.pause(2 * CHANGE_S)
    assert machine.serve(1) == [False]
    modes = machine.serve(TRIAL + 10)
    assert not any(modes[: TRIED_REQUESTS - 1])
    assert sum(modes) == TRIED_REQUESTS


def test_pauses_of_different_trials_are_not_added() -> None:
    machine = Machine(0.5, 1.0)
    machine.serve(TRIAL + 1)
    for _ in range(3 * PAUSES_MAX):
        while machine.serve(1)[-1]:
            pass
        machine.pause(2 * PAUSE_S)
        assert machine.serve(TRIAL + KEPT_REQUESTS_MIN // 2)[-1]
