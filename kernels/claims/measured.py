"""What the clock says: decode waits for memory, prefill for arithmetic, narrow weights are read faster.

Ratios of times taken side by side on one thread, so that a busy machine shifts both; each claim says what it asks of them.
"""

from __future__ import annotations

import platform
from collections.abc import Callable

import torch
from torch import Tensor

from ...presets import spec as s
from ..model import Model, build_model
from ..packed import quantize
from ..probes import require_memory
from ..timing import Call, Stopping, interleave
from .claim import Finding, at_least, at_most, claim, not_applicable
from .specs import one_stack, random_ids

POPE = "Pope et al. 2022, arXiv:2211.05102, section 2"
SIDE = "one thread, bf16; 20th percentiles, taken in turn"
CONTEXT = 64

Pass = Callable[[Model, Tensor], object]


def large(layers: int, width: int) -> s.ModelSpec:
    """12 · width² weights a layer."""
    return one_stack(position=s.Rope(), layers=layers, heads=width // 64, kv_heads=width // 64, width=width)


def large_model(layers: int, width: int) -> Model:
    """In bf16, if there is room for it; raises UnreadableError."""
    require_memory(3 * 24 * layers * width**2, torch.device("cpu"), what=f"a model of {layers} layers of width {width}")
    return build_model(large(layers, width), dtype=torch.bfloat16)


def decode_step(model: Model, ids: Tensor) -> object:
    """A new token for every sequence, CONTEXT tokens being in the cache."""
    cache = model.cache(ids.shape[0], CONTEXT + 1)
    cache.length = CONTEXT
    return model(ids[:, :1], cache=cache)


def prefill(model: Model, ids: Tensor) -> object:
    """All tokens at once."""
    return model(ids, last=True)


def side_by_side(calls: dict[str, Call], seconds: float) -> float:
    """How many times longer the first call takes than the second, by the fastest fifth of samples: another program only adds time."""
    with torch.no_grad():
        found = interleave(calls, stopping=Stopping(min_samples=5, min_seconds=seconds, max_seconds=4 * seconds), warmup=1)
    slow, fast = (found[name] for name in calls)
    return slow.p20_s / fast.p20_s


@claim(
    quantity="decode step of 4 sequences / of 1",
    formula="bytes of the weights, read once for all; 4 if nothing were shared",
    source=POPE,
    measured=True,
)
def a_batch_of_4_decodes_as_fast(step: Pass = decode_step, *, layers: int = 2, width: int = 4096, seconds: float = 2.0) -> Finding:
    """Decode is bandwidth-bound: 4 sequences take little longer than 1, because the weights are read once for all. Asked for: less than
    twice as long, and every sequence then costs less than half.
    """
    model = large_model(layers, width)
    four, one = random_ids(4, 1), random_ids(1, 1)
    calls: dict[str, Call] = {"4": lambda: step(model, four), "1": lambda: step(model, one)}
    return at_most(2.0, side_by_side(calls, seconds), note=SIDE)


@claim(
    quantity="prefill of 1024 tokens / of 256",
    formula="FLOPs: 4 and a little; 1 if the weights' bytes were the cost",
    source=POPE,
    measured=True,
)
def prefill_grows_with_its_tokens(run: Pass = prefill, *, layers: int = 1, width: int = 1024, seconds: float = 1.0) -> Finding:
    """Prefill is compute-bound: four times the tokens take about four times as long. Asked for: at least 2.5 times."""
    model = large_model(layers, width)
    many, few = random_ids(1, 1024), random_ids(1, 256)
    calls: dict[str, Call] = {"1024": lambda: run(model, many), "256": lambda: run(model, few)}
    return at_least(2.5, side_by_side(calls, seconds), note=SIDE)


@claim(quantity="FLOP/s of a prefill of 512 tokens / of a decode step", formula="512 · t_decode / t_prefill", source=POPE, measured=True)
def prefill_uses_the_arithmetic(
    run: Pass = prefill, *, layers: int = 2, width: int = 2048, tokens: int = 512, seconds: float = 2.0
) -> Finding:
    """The same weights do far more arithmetic a second in prefill than in decode, which waits for memory. Asked for: 5 times."""
    model, ids = large_model(layers, width), random_ids(1, tokens)
    calls: dict[str, Call] = {"decode": lambda: decode_step(model, ids), "prefill": lambda: run(model, ids)}
    return at_least(5.0, tokens * side_by_side(calls, seconds), note=SIDE)


def no_kernel() -> str | None:
    """Why there is no int8 kernel to measure here; None where there is."""
    if not hasattr(torch, "_weight_int8pack_mm"):
        return f"PyTorch {torch.__version__} has no int8 weight-only kernel"
    capability = torch.backends.cpu.get_cpu_capability()
    if capability in ("DEFAULT", "NO AVX"):
        return f"PyTorch's int8 weight-only kernel has no vector code for this processor ({platform.machine()}, {capability})"
    return None


def narrow(model: Model) -> None:
    """Every matrix of the layers in int8."""
    quantize(model, "int8")


@claim(
    quantity="decode step in bf16 / with int8 weights",
    formula="bytes: 2 / 1; 1 if nothing were gained",
    source="Dettmers et al. 2022, arXiv:2208.07339; PyTorch's _weight_int8pack_mm",
    measured=True,
)
def int8_weights_speed_decode(
    narrow: Callable[[Model], None] = narrow,
    *,
    layers: int = 2,
    width: int = 4096,
    seconds: float = 1.5,
    gap: Callable[[], str | None] = no_kernel,
) -> Finding:
    """With int8 weights a decode step nearly halves, where a kernel exists, since half the bytes are read. Asked for: 1.2 times as fast,
    because PyTorch's kernel widens the numbers as it reads them, which one thread does more slowly than memory gives them.
    """
    why = gap()
    if why is not None:
        return not_applicable(why)
    wide, slim, ids = large_model(layers, width), large_model(layers, width), random_ids(1, 1)
    narrow(slim)
    calls: dict[str, Call] = {"bf16": lambda: decode_step(wide, ids), "int8": lambda: decode_step(slim, ids)}
    return at_least(1.2, side_by_side(calls, seconds), note=SIDE)
