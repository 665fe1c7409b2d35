"""The stopwatch in beats, with a clock that does what it is told."""

from __future__ import annotations

import time

import pytest
import torch

from tfm.estimators.pace import ATTENTION_OVERLAP, Pace, paced
from tfm.kernels import meter
from tfm.kernels.beats import BEATS, Beat
from tfm.kernels.meter import MATRIX, STREAMING, VECTOR, Meter, Pauses, Tempo, at_start, whole_pace
from tfm.kernels.timing import Call, Stopping

CPU = torch.device("cpu")


class Machine:
    """A machine whose calls take the seconds that they say, times how slow it is at the moment."""

    def __init__(self) -> None:
        self.now, self.slow = 0.0, 1.0

    def call(self, seconds: float) -> Call:
        """A call that lasts so long."""

        def run() -> None:
            self.now += self.slow * seconds

        return run

    def watch(self, call: Call, calls: int) -> float:
        """Seconds of one call."""
        start = self.now
        for _ in range(calls):
            call()
        return (self.now - start) / calls


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """It stands in for the host's clock."""
    made = Machine()
    monkeypatch.setattr(meter, "watch_for", lambda _: made.watch)
    return made


STOPPING = Stopping(min_samples=3, min_seconds=0.0, max_seconds=1.0, target_spread=1.0)


def tempo(seconds: float, call: Call = lambda: None) -> Tempo:
    return Tempo(beat=Beat(call=call, amount=100.0), seconds=seconds)


@pytest.mark.parametrize("seconds", [1e-4, 3e-3, 0.5])
def test_seconds_are_those_of_the_start_however_slow_the_machine_is_now(machine: Machine, seconds: float) -> None:
    beat = machine.call(2e-3)
    watch = Meter(
        device=CPU, dtype=torch.float32, stopping=STOPPING, memory=tempo(2e-3, beat), vector=tempo(2e-3, beat), matrix=tempo(9.0)
    )  # fmt: skip
    machine.slow = 2.5
    found = watch.timed(machine.call(seconds), by=STREAMING, moved_bytes=5e4 * seconds / 2)
    assert found.seconds == pytest.approx(seconds)
    assert found.spread == pytest.approx(0.0)


def test_short_calls_are_made_several_in_a_row_and_beats_are_never_few(machine: Machine) -> None:
    order: list[str] = []

    def noting(name: str, seconds: float) -> Call:
        run = machine.call(seconds)

        def noted() -> None:
            order.append(name)
            run()

        return noted

    beat = tempo(2e-3, noting(" ", 2e-3))
    watch = Meter(device=CPU, dtype=torch.float32, stopping=STOPPING, memory=beat, vector=beat, matrix=tempo(9.0))
    for pauses, row in ((None, 10), (Pauses(), 1)):
        order.clear()
        watch.timed(noting("c", 1e-3), by=STREAMING, moved_bytes=100.0, pauses=pauses)
        _, *runs = "".join(order[2:]).split("c" * row)  # after the two that find out how long it takes
        assert [len(run) for run in runs] == [2 * BEATS, 4 * BEATS, BEATS, BEATS]


def test_what_a_call_pauses_for_is_not_counted(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", lambda: machine.now)
    pauses = Pauses()
    pause, before, behind = pauses.around(machine.call(0.4)), machine.call(0.01), machine.call(0.02)

    def call() -> None:
        before()
        pause()
        behind()

    watch = Meter(
        device=CPU, dtype=torch.float32, stopping=STOPPING, memory=tempo(9.0), vector=tempo(0.1, machine.call(0.1)), matrix=tempo(9.0)
    )
    assert watch.timed(call, pauses=pauses).seconds == pytest.approx(0.03)
    assert pauses.around(lambda x: x + 1)(2) == 3


def test_which_beat() -> None:
    watch = Meter(
        device=CPU, dtype=torch.float32, stopping=Stopping(), memory=tempo(1.0), vector=tempo(0.5), matrix=tempo(0.1)
    )  # fmt: skip
    assert (watch.yard.stream_bytes_per_s, watch.yard.vector_elements_per_s, watch.yard.matrix_flops_per_s) == (100.0, 200.0, 1000.0)
    assert not watch.multiplies(100, 999) and watch.multiplies(100, 1001)


@pytest.mark.parametrize("by", [VECTOR, STREAMING, MATRIX])
def test_each_beat_that_runs_gives_the_pace(machine: Machine, by: tuple[str, ...]) -> None:
    tempos = {name: tempo(2e-3, machine.call(2e-3 * slower)) for name, slower in (("memory", 3.0), ("vector", 2.0), ("matrix", 1.5))}
    watch = Meter(device=CPU, dtype=torch.float32, stopping=STOPPING, **tempos)
    paces: list[Pace] = []

    def start(seconds: float, pace: Pace) -> float:
        paces.append(pace)
        return seconds / 4

    assert watch.timed(machine.call(0.5), by=by, start=start).seconds == pytest.approx(0.125)
    for name in ("memory", "vector", "matrix"):
        among = {"memory": 3.0, "vector": 2.0, "matrix": 1.5}
        stands = name if name in by else by[-1]
        assert getattr(paces[-1], name) == pytest.approx(among[stands])


SLOWER = Pace(memory=3.0, vector=2.0, matrix=1.5)


@pytest.mark.parametrize(
    ("seconds", "streaming", "expected"),
    [
        pytest.param(6.0, 0.0, 3.0, id="no bytes"),
        pytest.param(5.0, 1.0, (1 + 2**2) ** 0.5, id="bytes, and the arithmetic that they hid in part"),
        pytest.param(6.0, 9.0, 2.0, id="faster than the beat"),
    ],
)
def test_at_the_start(seconds: float, streaming: float, expected: float) -> None:
    assert at_start(seconds, SLOWER, streaming=streaming, overlap=2.0) == pytest.approx(expected)
    assert paced(expected, streaming, SLOWER, 2.0) == pytest.approx(seconds)  # what was calibrated so is expected so


def test_a_pace_of_one_beat_is_that_of_everything() -> None:
    assert whole_pace({"matrix": 1.5}) == Pace(memory=1.5, vector=1.5, matrix=1.5)
    assert at_start(3.0, whole_pace({"matrix": 1.5}), streaming=1.0, overlap=ATTENTION_OVERLAP) == pytest.approx(2.0)
