"""Spinning for a client's next request, after a lone one that this worker has answered itself.

A client with one request in flight sends the next one as soon as it has the response. On a virtual
machine it often costs as much CPU to sleep meanwhile as to wait for it: the client pays for the
wakeup, the halted processor takes tens of microseconds to come back, and what the worker needs is
no longer at hand. Elsewhere sleeping is cheap, and a client that is busy on several processors
needs the worker's, too. So the worker tries both from time to time, and spins while the time from
one request to the next is shorter by a tenth, for at most a fifth more CPU.

A spin lasts a multiple of the time that the worker takes for such a request itself, which is right
on fast and on slow machines. Where no request comes in time, spins become rare
(node/bus/adaptive_spin.py). Between two looks the processor is offered to others. Called by the
worker's loop only.
"""

import os
from collections.abc import Callable
from statistics import median
from time import perf_counter, process_time, thread_time
from typing import Final, TypeAlias

from odradek.node.bus.adaptive_spin import AdaptiveSpin

PROCESSORS_MIN: Final = 2
"""One for the worker and one for the client."""
SPIN_PER_REQUEST: Final = 2.5
"""How long a spin is, in times of a request."""
REQUEST_S_MAX: Final = 120e-6
"""What is taken for the time of a request at most: the worker may have been preempted."""
TRIED_REQUESTS: Final = 64
"""Requests of each part of a trial: without spins, with them, and again without, because clients
become faster while they warm up."""
KEPT_REQUESTS_MIN: Final = 512
KEPT_REQUESTS_MAX: Final = 8_192
"""Requests until the next trial: twice as many each time that it says the same."""
TIME_MAX: Final = 0.9
CPU_MAX: Final = 1.2
"""Of the time from one request to the next, and of the CPU for each, with spins divided by those
without, or nothing spins."""
TIME_MAX_TO_GO_ON: Final = 1.0
CPU_MAX_TO_GO_ON: Final = 1.35
"""The same if spins have paid in the last trial, so that noise does not turn them off."""
PAUSE_S: Final = 0.002
"""A client that takes so long for its next request does not wait for the broker: a part of a trial
in which that happens begins anew."""
PAUSES_MAX: Final = 8
"""After so many pauses nothing spins until the next trial."""
CHANGE_S: Final = 0.02
"""After so long it may be another client, and a trial begins from the start."""
_TRIAL_PARTS: Final = 3
_REQUEST_S: Final = 40e-6
"""What is taken for the time of a request before there was one."""
_WEIGHT_FASTER: Final = 1 / 4
_WEIGHT_SLOWER: Final = 1 / 256
"""Of the newest request in what is taken for the time of one: it is about those that run at once,
and not about those for which the processor had to wake up."""

_Events: TypeAlias = list[tuple[int, int]]


class SpinTrial:
    """Finds out whether spins pay: a state machine. `used_s` is the CPU time of the loop."""

    def __init__(self, used_s: Callable[[], float]) -> None:
        self._used_s = used_s
        self.is_spinning = False
        """Whether the requests until the next call of `observe` may spin."""
        self._has_paid = False
        self._kept = KEPT_REQUESTS_MIN
        self._kept_left = 0
        self._parts: list[tuple[float, float]] = []
        """Of the parts of this trial that are over: median of the intervals, and CPU time."""
        self._intervals: list[float] = []
        self._pauses = 0
        self._answered_s = 0.0
        self._used_before_s = 0.0

    def observe(self, now_s: float) -> None:
        """A lone request was answered."""
        interval_s, self._answered_s = now_s - self._answered_s, now_s
        if interval_s > CHANGE_S:
            self._has_paid, self._kept, self._kept_left = False, KEPT_REQUESTS_MIN, 0
            self._parts.clear()
            self._pauses = 0
            self._begin_part(is_spinning=False)
        elif self._kept_left:
            self._kept_left -= 1
            if not self._kept_left:
                self._begin_part(is_spinning=False)
        elif interval_s > PAUSE_S:
            self._pauses += 1
            if self._pauses > PAUSES_MAX:
                self._conclude(pays=False)
            else:
                self._begin_part(is_spinning=self.is_spinning)
        else:
            self._intervals.append(interval_s)
            if len(self._intervals) == TRIED_REQUESTS:
                self._end_part()

    def _begin_part(self, *, is_spinning: bool) -> None:
        self.is_spinning = is_spinning
        self._intervals.clear()
        self._used_before_s = self._used_s()

    def _end_part(self) -> None:
        self._parts.append((median(self._intervals), self._used_s() - self._used_before_s))
        if len(self._parts) < _TRIAL_PARTS:
            self._begin_part(is_spinning=not self.is_spinning)
            return
        before, (interval_s, used_s), after = self._parts
        time_max = TIME_MAX_TO_GO_ON if self._has_paid else TIME_MAX
        cpu_max = CPU_MAX_TO_GO_ON if self._has_paid else CPU_MAX
        is_faster = interval_s < time_max * min(before[0], after[0])
        self._conclude(pays=is_faster and used_s < cpu_max * min(before[1], after[1]))

    def _conclude(self, *, pays: bool) -> None:
        is_same = pays == self._has_paid
        self._kept = min(2 * self._kept, KEPT_REQUESTS_MAX) if is_same else KEPT_REQUESTS_MIN
        self._kept_left = self._kept
        self.is_spinning = self._has_paid = pays
        self._parts.clear()
        self._pauses = 0


class TurnaroundSpin:
    """See the module's docstring. `has_requests` tells whether routers have sent requests,
    `processors` is how many this node may use."""

    def __init__(
        self,
        has_requests: Callable[[], bool],
        processors: int,
        clock: Callable[[], float] = perf_counter,
        used_s: Callable[[], float] = thread_time,
        offer_processor: Callable[[], object] = os.sched_yield,
    ) -> None:
        self._has_requests = has_requests
        self._clock = clock
        self._used_s = used_s
        self._offer_processor = offer_processor
        self._trial = SpinTrial(used_s)
        self._spin = AdaptiveSpin(processors, PROCESSORS_MIN)
        self._request_s = _REQUEST_S
        self.spun_s = 0.0
        """CPU time of all spins."""

    @property
    def duration_s(self) -> float:
        """How long a spin lasts that finds nothing."""
        return SPIN_PER_REQUEST * self._request_s

    def working_s(self) -> float:
        """CPU time of this process but for spins: whoever wants it busy with something else would
        not have to wait for them."""
        return process_time() - self.spun_s

    def run(self, look: Callable[[], _Events | None], request_s: float) -> _Events | None:
        """To be called after a lone request was answered, which has taken so many seconds. `look`
        gets the events of clients' connections, if there are some. None if it is time to sleep;
        else there are requests: these events, or in the rings if there are none."""
        now_s = self._clock()
        self._trial.observe(now_s)
        slower_s = min(request_s, REQUEST_S_MAX) - self._request_s
        self._request_s += slower_s * (_WEIGHT_SLOWER if slower_s > 0 else _WEIGHT_FASTER)
        if not self._trial.is_spinning or not self._spin.should_spin():
            return None
        until_s = now_s + self.duration_s
        used_s = used_before_s = self._used_s()
        while True:
            events = [] if self._has_requests() else look()
            if events is not None or now_s >= until_s:
                break
            self._offer_processor()
            now_s, used_s = self._clock(), self._used_s()
        self.spun_s += used_s - used_before_s
        self._spin.spin_ended(has_message=events is not None)
        return events
