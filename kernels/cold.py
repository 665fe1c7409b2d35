"""What runs between a large model's products, measured as it runs there: with Python's own data driven out of the processor's caches.

Weights that are read once drive out everything else, and what follows, a norm or the call of a kernel, takes several times as long as
alone. So something else is multiplied before each call that is measured here, and its time is left out. An accelerator has caches of its
own, and does not wait for Python's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from torch import Tensor

from ..estimators.expected import RUNNING
from ..estimators.ledger import ledger
from ..presets.calibration import Overhead
from .beats import streaming
from .benchmarks.whole import pass_of, subject
from .meter import Meter, Pauses
from .mixers import Scores
from .model import Model, build_model
from .modules import Linear
from .plan import TINIEST, Plan
from .probes import dtype_name
from .timing import Call


def driving_out(plan: Plan, meter: Meter, size_bytes: int) -> Call | None:
    """Multiply by the next so many bytes of weights; None where nothing waits for Python's caches."""
    if meter.device.type != "cpu":
        return None
    return streaming(meter.dtype, meter.device, pool_bytes=plan.beat_bytes, slice_bytes=size_bytes).call


def cold(call: Call, drive: Call) -> tuple[Call, Pauses]:
    """A call with cold caches, and what leaves out how they got cold."""
    pauses = Pauses()
    first = pauses.around(drive)

    def run() -> None:
        first()
        call()

    return run, pauses


def overheads(plan: Plan, meter: Meter) -> Iterator[Overhead]:
    """What a decode step of a model that is next to nothing takes beside its products and attention, over the rows that run in it: by
    bytes that are read at each product, and by kind of model.
    """
    work = pass_of("decode", meter.dtype, batch=1, context=16)
    for size in plan.between:
        drive = driving_out(plan, meter, size)
        for norm, spec in TINIEST.items():
            ready = subject(build_model(spec, device=meter.device, dtype=meter.dtype), work)
            pauses = Pauses() if drive is None else cold_between(ready.model, drive)
            found = meter.timed(ready.run, pauses=pauses, stopping=plan.whole)
            count = sum(row.repeat for row in ledger(spec, work) if row.op in RUNNING)
            yield Overhead(dtype=dtype_name(meter.dtype), seconds_per_row=found.seconds / count, norm=norm, between_bytes=size)


def cold_between(model: Model, drive: Call) -> Pauses:
    """Let the caches be driven out at each product of a model: gives what leaves that out, and products and attention themselves."""
    pauses = Pauses()
    for module in model.modules():
        if isinstance(module, Linear):
            module.forward = pauses.around(partial(after, drive, module.forward))  # type: ignore[method-assign]
        elif isinstance(module, Scores):
            module.forward = pauses.around(module.forward)  # type: ignore[method-assign]
    return pauses


def after(first: Call, run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """One call, then another."""
    first()
    return run(x)
