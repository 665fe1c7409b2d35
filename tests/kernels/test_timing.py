"""The timer, with a clock that only moves when a function says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tfm.kernels.timing import (
    MOST_CALLS,
    HarnessError,
    Sample,
    Stopping,
    _cache_bytes,
    buffers_needed,
    host_watch,
    in_rotation,
    interleave,
    last_level_cache_bytes,
    measure,
    paired_ratio,
    percentile,
    refuse_impossible,
    rotated,
)


class FakeTime:
    """A clock and functions that take a told number of seconds of it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waits = 0
        self.order: list[str] = []

    def clock(self) -> float:
        return self.now

    def sync(self) -> None:
        self.waits += 1

    def work(self, *seconds: float, name: str = "f") -> Callable[[], None]:
        """A function that takes the given seconds one after another, then the last of them for ever; negative is Ctrl-C."""
        queue = list(seconds)

        def call() -> None:
            self.order.append(name)
            take = queue.pop(0) if len(queue) > 1 else queue[0]
            if take < 0:
                raise KeyboardInterrupt
            self.now += take

        return call


@pytest.fixture
def fake() -> FakeTime:
    return FakeTime()


def test_steady_function_stops_at_the_spread(fake: FakeTime) -> None:
    sample = measure(fake.work(0.125), clock=fake.clock, min_samples=10, min_seconds=0.5, max_seconds=100)
    assert (sample.stop, sample.samples, sample.median_s, sample.spread) == ("spread", 10, 0.125, 0.0)


def test_minimum_time_asks_for_more_samples(fake: FakeTime) -> None:
    sample = measure(fake.work(0.125), clock=fake.clock, min_samples=2, min_seconds=2.0, max_seconds=100)
    assert (sample.stop, sample.samples) == ("spread", 16)


def test_restless_function_stops_at_the_budget(fake: FakeTime) -> None:
    call = fake.work(*[0.25, 0.75] * 50)
    sample = measure(call, clock=fake.clock, max_seconds=20.0, target_spread=0.1, warmup=0)
    assert sample.stop == "budget"
    assert fake.now - 100 == pytest.approx(20.0, abs=0.75)
    assert sample.spread > 0.5


def test_budget_wins_over_the_minimum(fake: FakeTime) -> None:
    sample = measure(fake.work(4.0), clock=fake.clock, min_samples=10, max_seconds=6.0, warmup=1)
    assert (sample.stop, sample.samples) == ("budget", 3)


def test_first_slow_calls_are_warm_up(fake: FakeTime) -> None:
    sample = measure(fake.work(9.0, 5.0, 3.0, 0.5), clock=fake.clock, warmup=3, max_seconds=100)
    assert set(sample.times) == {0.5}


def test_short_calls_are_repeated_within_a_sample(fake: FakeTime) -> None:
    sample = measure(fake.work(2.0**-20), clock=fake.clock, min_seconds=0.001)
    assert sample.calls == 210  # 2e-4 s / 2^-20 s, rounded up
    assert sample.median_s == pytest.approx(2.0**-20)


def test_a_call_faster_than_the_clock_is_repeated_most(fake: FakeTime) -> None:
    assert measure(fake.work(0.0), clock=fake.clock, min_seconds=0.0, min_samples=1).calls == MOST_CALLS


def test_device_is_waited_for_before_and_after(fake: FakeTime) -> None:
    assert host_watch(fake.clock, fake.sync)(fake.work(0.5), 4) == 0.5
    assert fake.waits == 2


def test_interrupt_keeps_what_was_measured(fake: FakeTime) -> None:
    sample = measure(fake.work(1.0, 1.0, 1.0, 2.0, -1.0), clock=fake.clock, warmup=0, max_seconds=100)
    assert (sample.times, sample.interrupted, sample.stop) == ((1.0, 1.0, 2.0), True, "interrupted")


@pytest.mark.parametrize("seconds", [(-1.0,), (1.0, -1.0)], ids=["in the warm-up", "in the first sample"])
def test_interrupt_before_any_sample_is_raised(fake: FakeTime, seconds: tuple[float, ...]) -> None:
    with pytest.raises(KeyboardInterrupt):
        measure(fake.work(*seconds), clock=fake.clock, warmup=0)


def test_interleaving_takes_turns_and_shifts_the_first(fake: FakeTime) -> None:
    stopping = Stopping(min_samples=3, min_seconds=0.0)
    found = interleave({n: fake.work(1.0, name=n) for n in "abc"}, clock=fake.clock, stopping=stopping, warmup=0)
    assert "".join(fake.order) == "abc" + "abc" + "bca" + "cab"  # one call each to learn how long it takes, then three rounds
    assert {name: sample.samples for name, sample in found.items()} == {"a": 3, "b": 3, "c": 3}


def test_interrupted_interleaving_leaves_out_who_had_no_turn(fake: FakeTime) -> None:
    fns = {"a": fake.work(1.0), "b": fake.work(1.0, -1.0), "c": fake.work(1.0)}
    found = interleave(fns, clock=fake.clock, warmup=0)
    assert {name: (sample.samples, sample.interrupted) for name, sample in found.items()} == {"a": (1, True)}


def test_all_have_to_be_steady_before_interleaving_ends(fake: FakeTime) -> None:
    fns = {"steady": fake.work(0.5), "restless": fake.work(*[0.25, 0.75] * 6, 0.5)}
    found = interleave(fns, clock=fake.clock, stopping=Stopping(min_samples=4, min_seconds=0.0, max_seconds=1e3), warmup=0)
    assert found["steady"].samples == found["restless"].samples > 20


def test_paired_ratio_cancels_a_slow_spell() -> None:
    slow = Sample(times=(3.0, 30.0, 3.3), calls=1, stop="spread")
    fast = Sample(times=(1.0, 10.0, 1.1), calls=1, stop="spread")
    assert paired_ratio(slow, fast) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.0, 1.0), (0.2, 1.8), (0.5, 3.0), (0.8, 4.2), (1.0, 5.0)],
    ids=["least", "p20", "median", "p80", "most"],
)
def test_percentile(share: float, expected: float) -> None:
    assert percentile([5.0, 1.0, 4.0, 2.0, 3.0], share) == pytest.approx(expected)


def test_sample_reports_median_and_fifths() -> None:
    sample = Sample(times=(4.0, 1.0, 2.0, 3.0, 5.0, 100.0), calls=7, stop="budget")
    assert (sample.median_s, sample.p20_s, sample.p80_s, sample.samples) == (3.5, 2.0, 5.0, 6)
    assert sample.spread == pytest.approx(3 / 3.5)
    assert not sample.interrupted


def test_rotation_goes_round() -> None:
    seen: list[str] = []
    call = rotated(seen.append, ["x", "y", "z"])
    for _ in range(5):
        call()
    assert seen == ["x", "y", "z", "x", "y"]


def test_calls_measured_in_turn_share_one_rotation() -> None:
    seen: list[str] = []
    calls = in_rotation({"a": lambda x: seen.append(f"a{x}"), "b": lambda x: seen.append(f"b{x}")}, [1, 2, 3])
    for _ in range(3):
        calls["a"]()
        calls["b"]()
    assert seen == ["a1", "b2", "a3", "b1", "a2", "b3"]


@pytest.mark.parametrize(
    ("buffer", "cache", "free", "expected"),
    [(512, 300, None, 3), (64, 300, None, 19), (5000, 300, None, 1), (512, 300, 2048, 2), (512, 300, 100, 1)],
    ids=["several", "many small", "one is enough", "half of the memory", "at least one"],
)
def test_buffers_needed(buffer: int, cache: int, free: int | None, expected: int) -> None:
    assert buffers_needed(buffer, cache, free_bytes=free) == expected


@pytest.mark.parametrize(("text", "expected"), [("48K\n", 49_152), ("300M", 314_572_800), ("1G", 1 << 30), ("512", 512)])
def test_cache_size_as_linux_writes_it(text: str, expected: int) -> None:
    assert _cache_bytes(text) == expected


def test_this_machine_has_a_cache() -> None:
    assert last_level_cache_bytes() >= 1 << 18


def test_a_rate_within_its_bound_passes_unchanged() -> None:
    assert refuse_impossible(104.9, 100.0) == 104.9


def test_a_rate_beyond_its_bound_is_a_harness_error() -> None:
    with pytest.raises(HarnessError, match=r"decode bandwidth: 106 is 1\.06 of the bound 100"):
        refuse_impossible(106.0, 100.0, "decode bandwidth")
