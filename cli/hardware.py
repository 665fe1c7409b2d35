"""`tfm hardware`: which devices are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from . import options as o

if TYPE_CHECKING:
    from .output import Answer


def hardware(as_json: o.Json = False, as_csv: o.Csv = False, as_markdown: o.Markdown = False) -> None:
    """The device presets: capacity, bandwidth, dense peak rates as the vendor publishes them.

    \b
    Examples:
      tfm hardware
      tfm hardware --csv
    """
    from .output import emit, one_format

    one_format(as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)
    emit(listed(), as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(hardware)


def listed() -> Answer:
    """Every device."""
    from ..presets.device import device_names, load_device
    from .output import Answer
    from .quantities import Kind
    from .tables import Column, Table

    rows = []
    for name in device_names():
        device = load_device(name)
        peaks = {f"{dtype}_flops_per_s": device.peak_for(dtype) for dtype in ("bf16", "fp8", "fp32")}
        rows.append({"device": name, "capacity_bytes": device.capacity_bytes, "memory_bytes_per_s": device.memory_bytes_per_s, **peaks})
    columns = (
        Column("device", Kind.TEXT), Column("capacity_bytes", Kind.BYTES), Column("memory_bytes_per_s", Kind.BYTES_PER_S, "bandwidth"),
        *(Column(f"{dtype}_flops_per_s", Kind.FLOPS_PER_S, dtype) for dtype in ("bf16", "fp8", "fp32")),
    )  # fmt: skip
    note = "dense rates; bf16 and fp8 accumulate in fp32; `-` is a rate that the vendor does not publish or the device does not have"
    return Answer(
        command="hardware", inputs={}, assumptions=(note,), result={"rows": rows}, tables=(Table("Devices", columns, tuple(rows)),)
    )
