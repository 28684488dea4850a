"""Real signals to real processes: the first lets work end, the second does not."""

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, sys, threading
from odradek.pipeline.cli.stop_signals import StopSignals
with StopSignals("the current work") as signals:
    print("ready", flush=True)
    signals.stop.wait()
    print("stopped", flush=True)
    if sys.argv[1] == "hangs":
        threading.Event().wait()
    if sys.argv[1] == "is in C":
        # Waits for ever for what it has itself, and is not interrupted.
        library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
        library.pthread_mutex_lock(mutex)
        library.pthread_mutex_lock(mutex)
raise SystemExit(signals.exit_code(is_endless=sys.argv[1] == "endless"))
"""
TOLD = "\nEnding after the current work; the same again ends now.\n"


def ended(kind: str, *numbers: signal.Signals) -> tuple[int, str]:
    """Exit code and stderr after these signals, of which each waits for what the last one did."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, kind],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        try:
            for number in numbers:
                process.stdout.readline()
                process.send_signal(number)
            return process.wait(30), process.stderr.read()
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("kind", "number", "exit_code"),
    [
        ("once", signal.SIGTERM, 143),
        ("once", signal.SIGINT, 130),
        ("endless", signal.SIGTERM, 0),
        ("endless", signal.SIGINT, 130),
    ],
)
def test_the_first_signal_lets_work_end(kind: str, number: signal.Signals, exit_code: int) -> None:
    assert ended(kind, number) == (exit_code, TOLD)


@pytest.mark.parametrize("kind", ["hangs", "is in C"])
@pytest.mark.parametrize(("second", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_second_signal_ends_at_once(kind: str, second: signal.Signals, exit_code: int) -> None:
    assert ended(kind, signal.SIGINT, second) == (exit_code, TOLD)


def test_the_handlers_before_are_put_back() -> None:
    program = PROGRAM.replace('print("ready", flush=True)', "signals.stop.set()")
    program = program.replace("raise SystemExit", "import signal\nsignal.raise_signal(2)\nraise")
    ran = subprocess.run(
        [sys.executable, "-c", program, "once"], capture_output=True, text=True, check=False
    )
    assert ran.stderr.splitlines()[-1] == "KeyboardInterrupt"
