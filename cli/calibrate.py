"""`tfm calibrate`: measure the local device once, and store it as hardware `local`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from . import options as o
from .bench import Threads

if TYPE_CHECKING:
    from pathlib import Path

    from ..presets.calibration import Calibration
    from .output import Answer
    from .tables import Table


def calibrate(threads: Threads = None, as_json: o.Json = False, as_csv: o.Csv = False, as_markdown: o.Markdown = False) -> None:
    """Measure this machine (under two minutes) and store it as hardware `local` for every command that takes --hardware.

    \b
    Examples:
      tfm calibrate
      tfm calibrate --threads 4 --json
    """
    from .. import __version__
    from .measuring import Progress, need_torch
    from .output import emit, one_format

    one_format(as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)
    need_torch()
    from ..kernels.benchmarks.setting import Setting, use_threads
    from ..kernels.calibration import calibrate as measure
    from ..presets.calibration import save_calibration

    use_threads(threads)
    progress = Progress()
    found = measure(Setting(tell=progress), version=__version__)
    path = save_calibration(found)
    progress.done()
    emit(answer(found, path), as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(calibrate)


def answer(found: Calibration, path: Path) -> Answer:
    """What was measured, in short; the file has every point."""
    from .output import Answer

    device = found.device
    result = {
        "hardware": device.name,
        "path": path,
        "device": found.machine.device,
        "threads": found.machine.threads,
        "torch": found.machine.torch,
        "made": found.made,
        "memory_bytes_per_s": device.memory_bytes_per_s,
        "peak_flops_per_s": device.peak_flops_per_s,
        "launch_s": found.launch_s,
        "correction": corrections(found),
    }
    spreads = [product.spread for product in found.products] + [point.spread for point in found.attended]
    noisy = [spread for spread in spreads if spread > 0.2]
    notes: tuple[str, ...] = ()
    if len(noisy) > len(spreads) // 4:
        notes = (
            f"{len(noisy)} of {len(spreads)} points spread by more than 20 %: something else uses this "
            "machine. Close it and calibrate again; see docs/measuring.md, 'busy machine'",
        )
    return Answer(
        command="calibrate",
        inputs={"threads": found.machine.threads},
        assumptions=("`--hardware local` now means this; another thread count, torch or driver makes it stale (`tfm doctor` says so)",),
        result=result,
        tables=tables(found, path),
        notes=notes,
    )


def corrections(found: Calibration) -> dict[str, dict[str, float]]:
    """By phase and format: what whole models took over what their parts add up to, and how far apart that lies."""
    from ..estimators.expected import correction

    pairs = dict.fromkeys((check.phase, check.dtype) for check in found.checks)
    made = {f"{phase} {dtype}": correction(found.checks, phase=phase, dtype=dtype) for phase, dtype in pairs}
    return {name: {"factor": factor, "margin": margin} for name, (factor, margin) in made.items()}


def tables(found: Calibration, path: Path) -> tuple[Table, ...]:
    """The device, its rates by size and shape, and the checks."""
    from .quantities import Kind, Quantity
    from .tables import Column, Table, card

    facts = [
        ("stored in", Quantity(str(path), Kind.TEXT)),
        ("bandwidth", Quantity(found.device.memory_bytes_per_s, Kind.BYTES_PER_S)),
        *((f"matmul {dtype}", Quantity(rate, Kind.FLOPS_PER_S)) for dtype, rate in found.device.peak_flops_per_s.items()),
        ("launching an operator", Quantity(found.launch_s, Kind.SECONDS)),
    ]
    products = tuple(
        (line.dtype, line.m, f"{line.k} x {line.n}", line.seconds, 2 * line.m * line.k * line.n / line.seconds, line.spread)
        for line in found.products
    )
    checks = tuple(
        (
            line.phase,
            line.dtype,
            line.model,
            line.batch,
            line.context,
            line.predicted_s,
            line.measured_s,
            line.measured_s / line.predicted_s,
        )
        for line in found.checks
    )
    return (
        card(f"{found.machine.device}, {found.machine.threads} threads, as hardware `local`", facts),
        Table(
            "Matrix products",
            (
                Column("dtype", Kind.TEXT), Column("m", Kind.EXACT), Column("matrix", Kind.TEXT), Column("seconds", Kind.SECONDS, "time"),
                Column("flops_per_s", Kind.FLOPS_PER_S, "rate"), Column("spread", Kind.RATIO),
            ),
            products,
        ),
        Table(
            "Whole models, parts added up and measured",
            (
                Column("phase", Kind.TEXT), Column("dtype", Kind.TEXT), Column("model", Kind.TEXT), Column("batch", Kind.EXACT),
                Column("ctx", Kind.EXACT), Column("predicted_s", Kind.SECONDS, "parts"), Column("measured_s", Kind.SECONDS, "measured"),
                Column("factor", Kind.NUMBER),
            ),
            checks,
        ),
    )  # fmt: skip
