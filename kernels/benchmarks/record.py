"""One measured line: what the clock said, what it was predicted from, and what to think of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...estimators.expected import Expected
from ..timing import BUSY_SPREAD, Sample, refuse_impossible


@dataclass(frozen=True, kw_only=True)
class Record:
    """One line of a benchmark.

    Attributes:
        labels: what tells it from the other lines (model, batch, ctx, impl ...).
        sample: seconds of one call. flops, bytes: of one call, compulsory bytes only.
        bandwidth_bytes_per_s, peak_flops_per_s: the best that plain probes reached in the same run; `probe` is the winner.
        floor_s, bound_s: predicted from those two; None where the bytes did not have to come from memory.
        expected: what the calibration says, where there is one.
        backend: what really ran. facts: further keys.
    """

    labels: Mapping[str, object]
    device: str
    dtype: str
    sample: Sample
    flops: float
    bytes: float
    bandwidth_bytes_per_s: float
    probe: str
    peak_flops_per_s: float | None
    floor_s: float | None
    bound_s: float | None
    backend: str
    expected: Expected | None = None
    facts: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.bound_s is not None and not self.sample.interrupted:
            name = " ".join(str(value) for value in self.labels.values())
            refuse_impossible(1 / self.sample.median_s, 1 / self.bound_s, f"{name} (calls per second)")

    def figures(self) -> dict[str, object]:
        """The keys of the contract, labels first."""
        median, expected = self.sample.median_s, self.expected
        return {
            **self.labels,
            "device": self.device,
            "dtype": self.dtype,
            "median_s": median,
            "p20_s": self.sample.p20_s,
            "p80_s": self.sample.p80_s,
            "samples": self.sample.samples,
            "spread": self.sample.spread,
            "flops": self.flops,
            "bytes": self.bytes,
            "bytes_per_s": self.bytes / median,
            "flops_per_s": self.flops / median,
            "floor_s": self.floor_s,
            "bound_s": self.bound_s,
            "of_bound": None if self.bound_s is None else self.bound_s / median,
            "expected_s": expected.seconds if expected else None,
            "expected_low_s": expected.low_s if expected else None,
            "expected_high_s": expected.high_s if expected else None,
            "bandwidth_bytes_per_s": self.bandwidth_bytes_per_s,
            "bandwidth_probe": self.probe,
            "peak_flops_per_s": self.peak_flops_per_s,
            "of_bandwidth": self.bytes / median / self.bandwidth_bytes_per_s,
            "backend": self.backend,
            "verdict": verdict(self),
            **self.facts,
        }


def verdict(record: Record) -> str:
    """How near the measurement came to what is possible, and which wall that is."""
    if record.bound_s is None:
        return "in the cache: not memory's rate"
    compute = 0.0 if record.peak_flops_per_s is None else record.flops / record.peak_flops_per_s
    wall = "arithmetic" if compute > record.bytes / record.bandwidth_bytes_per_s else "memory"
    share = record.bound_s / record.sample.median_s
    near = "at" if share >= 0.85 else "near" if share >= 0.6 else "far from"
    return f"{near} the {wall} bound"


def busy_note(record: Record) -> str | None:
    """A warning where samples lie so far apart that something else must use the machine."""
    if record.sample.spread <= BUSY_SPREAD:
        return None
    name = " ".join(str(value) for value in record.labels.values())
    return (
        f"{name}: the samples spread by {record.sample.spread:.0%} (p80 - p20 over the median; a quiet machine has 2 to 5 %). "
        "Something else uses this machine: close it, or measure longer (--seconds 30); see docs/measuring.md, 'busy machine'"
    )
