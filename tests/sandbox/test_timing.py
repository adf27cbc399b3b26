"""Intervals and clocks."""

import os
import signal
import statistics
import subprocess
import sys
import time

import pytest

from sandbox import timing


def noisy(middle: float, count: int = 64, spread: float = 0.05) -> list[float]:
    import random

    return [middle * (1 + spread * random.random()) for _ in range(count)]


def test_an_identical_copy_is_not_faster():
    low, middle, high = timing.interval([noisy(1.0), noisy(1.0)], noisy(1.0))
    assert low < 1.0 < high and abs(middle - 1) < 0.03


def test_a_real_speedup_stands_clear():
    low, middle, high = timing.interval([noisy(2.0), noisy(2.0)], noisy(1.0))
    assert low > 1.8 and low <= middle <= high < 2.2


def test_drift_between_the_blocks_widens_the_interval():
    steady = timing.interval([noisy(1.0), noisy(1.0)], noisy(0.9))
    drifted = timing.interval([noisy(1.0), noisy(1.3)], noisy(0.9))
    assert drifted[0] < steady[0] and drifted[2] > steady[2] and drifted[0] < 1.05


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_times_are_refused(bad):
    with pytest.raises(ValueError):
        timing.interval([[1.0]], [bad])
    with pytest.raises(ValueError):
        timing.interval([[]], [1.0])


def test_a_product_of_ratios_keeps_its_middle_and_is_wider_than_each():
    low, middle, high = timing.product((0.9, 1.0, 1.1), (1.8, 2.0, 2.2))
    assert middle == 2.0 and 1.62 <= low < 1.8 and 2.2 < high <= 2.42


def test_calls_that_others_held_up_are_left_out():
    calls = [(1.0, 0.0)] * 10 + [(5.0, 4.0)] * 30
    assert timing.undisturbed(calls) == [1.0] * 10
    assert timing.undisturbed([(5.0, 4.0)] * 20, least=8) == [5.0] * 8


SERVER = "import os, signal, sys, time, threading\nsys.stdout.write('x'); sys.stdout.flush(); sys.stdin.read(1)\n"


def held(body: str):
    process = subprocess.Popen([sys.executable, "-c", SERVER + body], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdout.read(1)
    watch = timing.Stopwatch(process.pid)
    watch.attach()
    process.stdin.write(b"g")
    process.stdin.flush()
    return process, watch


def finish(process, watch):
    process.kill()
    watch.reap()


def test_a_call_takes_what_it_takes_on_the_judges_clock():
    process, watch = held(
        "while True:\n    signal.raise_signal(5)\n    end = time.monotonic() + 0.02\n    while time.monotonic() < end: pass"
    )
    with timing.deadline(5):
        watch.first_stop()
        assert 19e6 < watch.run() < 200e6
    finish(process, watch)


def test_a_held_server_does_nothing_whatever_it_planned():
    body = (
        "c = [0]\n"
        "def work():\n    while True: c[0] += 1; open('/dev/null').close()\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "signal.signal(signal.SIGALRM, lambda *a: os.kill(os.getpid(), signal.SIGCONT))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\n"
        "while True:\n    signal.raise_signal(5)"
    )
    process, watch = held(body)
    with timing.deadline(5):
        watch.first_stop()
        watch.confirm()
        assert len(watch.threads) == 2

        def used() -> int:
            return sum(int(open(f"/proc/{process.pid}/task/{t}/schedstat").read().split()[0]) for t in watch.threads)

        before = used()
        os.kill(process.pid, signal.SIGCONT)
        time.sleep(0.05)
        assert used() == before
        watch.run()
        assert used() > before
    finish(process, watch)


def test_a_process_started_during_a_call_ends_the_judgement():
    process, watch = held("signal.raise_signal(5)\nos.fork()\nwhile True:\n    signal.raise_signal(5)")
    with timing.deadline(5):
        watch.first_stop()
        with pytest.raises(timing.Untraceable):
            watch.run()
    finish(process, watch)


def test_an_end_is_told_with_its_status_and_silence_by_the_deadline():
    process, watch = held("signal.raise_signal(5)\nos._exit(7)")
    with timing.deadline(5), pytest.raises(timing.Died) as died:
        watch.first_stop()
        watch.run()
    assert os.WEXITSTATUS(died.value.status) == 7
    finish(process, watch)
    process, watch = held("signal.raise_signal(5)\ntime.sleep(100)")
    with pytest.raises(timing.CallTimeout), timing.deadline(0.3):
        watch.first_stop()
        watch.run()
    finish(process, watch)


def test_calls_that_sleep_on_purpose_are_not_left_out_for_free():
    fast, slow = [(0.5, 0.0)] * 14, [(1.1, 0.1)] * 50
    assert statistics.median(timing.undisturbed(fast + slow)) == pytest.approx(1.0)
    disturbed = [(1.0, 0.01)] * 40 + [(3.0, 2.0)] * 24
    assert timing.undisturbed(disturbed) == [1.0] * 40
    assert timing.undisturbed([(2.0 + i, 1.0 + i) for i in range(20)], 4) == [2.0, 3.0, 4.0, 5.0]
