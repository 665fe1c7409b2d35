"""The expected time of a pass on the calibrated device, with an interval: arithmetic on what `tfm calibrate` measured.

Row by row, as the roofline does, but with seconds that were measured where the roofline has peak rates: matrix products by
rows and size, attention by grouping and cache, and a cost a row for everything around them. The sum is then corrected as far as
small whole models, measured in the same calibration, agree that it is wrong; how far they lie from that is the interval.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import msgspec
from msgspec.structs import replace

from ..presets.calibration import Attended, Calibration, Check
from ..presets.spec import Attention, FeedForward, ModelSpec
from .counts import Number, each
from .ledger import ledger
from .pace import ATTENTION_OVERLAP, PRODUCT_OVERLAP, Pace, paced
from .rows import Row
from .sizes import moved_bytes, weight_read_bytes
from .work import Pass

ALIGNED = 32  # elements
TURNING = 3  # additions that turning queries and keys by their positions, and storing them, is worth
ACTIVATIONS = {"swish": "silu", "gelu_python": "gelu", "clamped_swiglu": "silu"}
LEAST_MARGIN = 0.03  # two calibrations of one quiet machine differ by about this much
RUNNING = frozenset({"linear", "conv", "experts", "attention", "scan", "norm", "activation"})
Point = tuple[float, float]
Run = tuple[Row, ...]


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a pass, and between what they should lie.

    `products_s`, `attention_s`, `other_s`: the parts, before `factor` (from the checks of the calibration) corrects their sum.
    """

    seconds: float
    low_s: float
    high_s: float
    products_s: float
    attention_s: float
    other_s: float
    factor: float
    basis: str


def expected(spec: ModelSpec, work: Pass, measured: Calibration, pace: Pace | None = None) -> Expected | None:
    """The time of one pass (plain integers, no arrays); None where its formats were not calibrated.

    `pace`: how the machine's speed in this run compares with that of the calibration; None takes the calibration's.
    """
    if not knows(work, measured):
        return None
    rows, pace = [row for row in ledger(spec, work) if row.repeat], pace or Pace()
    joins = joining(measured, work.activation_dtype.name)
    runs = running_as_one(rows, joins)
    curves = Curves.of(spec, runs, work, measured, fused=is_fused(spec, work, joins))
    parts = {"products": 0.0, "attention": 0.0, "other": 0.0}
    for run in runs:
        first = run[0]
        parts[kind(first)] += first.repeat * curves.paced_seconds(run, work, pace)
        parts["other"] += first.repeat * curves.around(first) * pace.vector
    factor, margin = correction(measured.checks, phase=phase_of(work), dtype=work.activation_dtype.name)
    seconds = factor * sum(parts.values())
    return Expected(
        seconds=seconds,
        low_s=seconds / (1 + margin),
        high_s=seconds * (1 + margin),
        products_s=parts["products"],
        attention_s=parts["attention"],
        other_s=parts["other"],
        factor=factor,
        basis=basis(measured, factor),
    )


def expected_figures(spec: ModelSpec, work: Pass, measured: Calibration) -> dict[str, Number]:
    """decode_expected_s, prefill_expected_s and their ends (`_low_s`, `_high_s`), arrays where batch, context or source is; None
    for what was not calibrated or does not decode.
    """
    found: dict[str, Number] = {}
    for phase in ("decode", "prefill"):

        def at(batch: int, context: int, source: int | None, phase: Any = phase) -> Expected | None:
            point = replace(work, phase=phase, new=None, batch=batch, context=context, source=source)
            return None if point.decoding and not spec.decodes else expected(spec, point, measured)

        times = each(at, work.batch, work.context, work.source)
        for name, field in (("", "seconds"), ("_low", "low_s"), ("_high", "high_s")):
            found[f"{phase}_expected{name}_s"] = each(lambda time, field=field: getattr(time, field, None), times)
    return found


def knows(work: Pass, measured: Calibration) -> bool:
    """Whether the pass computes in a format that was measured, weights and cache in the same one; training was not."""
    name = work.activation_dtype.name
    weights = work.stored.format if work.stored else work.weight_dtype.name
    same = name == weights == work.kv_dtype.name
    return same and work.phase != "train" and any(product.dtype == name for product in measured.products)


def phase_of(work: Pass) -> str:
    """The phase whose checks correct this pass."""
    return "decode" if work.decoding else "prefill"


def basis(measured: Calibration, factor: float) -> str:
    """Where the efficiency came from, in words."""
    machine = measured.machine
    checks = f"corrected by {factor:.3f} from small whole models" if measured.checks else "not corrected by whole models"
    return f"`tfm calibrate` of {measured.day} on {machine.device}, {machine.threads} threads, torch {machine.torch}; {checks}"


def correction(checks: Iterable[Check], *, phase: str, dtype: str) -> tuple[float, float]:
    """By how much the checks of a phase and format agree that the sum is wrong, and how far they lie from that, either way as a factor less
    one; (1, 0.1) without any.

    1 where some took longer than predicted and some less: the few there are say no more than that. And for one alone: it may have been
    disturbed.
    """
    ratios = [check.measured_s / check.predicted_s for check in checks if (check.phase, check.dtype) == (phase, dtype)]
    if not ratios:
        return 1.0, 0.1
    agreed = min(max(1.0, min(ratios)), max(ratios)) if len(ratios) > 1 else 1.0
    return agreed, max(LEAST_MARGIN, *(max(ratio / agreed, agreed / ratio) - 1 for ratio in ratios))


def kind(row: Row) -> str:
    """Which part of the time a row belongs to."""
    if row.op in ("linear", "conv", "experts"):
        return "products"
    return "attention" if row.op in ("attention", "scan") else "other"


# --- measured points as curves --------------------------------------------------------------------------------------


def along(points: Sequence[Point], x: float, *, flat: bool = False) -> float:
    """y at x through points (x, y) by increasing x, straight between them on logarithmic axes.

    Beyond the ends y grows as x does, or (`flat`) stays as it is: half the work takes half the time, a rate stays a rate.

    >>> along([(1, 10.0), (4, 20.0)], 2), along([(1, 10.0), (4, 20.0)], 8), along([(1, 10.0), (4, 20.0)], 8, flat=True)
    (14.142135623730951, 40.0, 20.0)
    """
    for (x0, y0), (x1, y1) in pairwise(points):
        if x0 <= x <= x1:
            share = math.log(x / x0) / math.log(x1 / x0)
            return float(y0 * (y1 / y0) ** share)
    end, y = points[0] if x < points[0][0] else points[-1]
    return y if flat else y * x / end


def averaged(pairs: Iterable[Point]) -> list[Point]:
    """Points by increasing x, those with the same x as one with the geometric mean of their y."""
    groups: defaultdict[float, list[float]] = defaultdict(list)
    for x, y in pairs:
        groups[x].append(y)
    return [(x, math.exp(math.fsum(map(math.log, ys)) / len(ys))) for x, ys in sorted(groups.items())]


def product_curves(measured: Calibration, dtype: str, *, aligned: bool) -> dict[float, list[Point]]:
    """m -> [(k·n, seconds)] of one format, for widths out that are multiples of ALIGNED or for the others."""
    found: defaultdict[float, list[Point]] = defaultdict(list)
    for product in measured.products:
        if product.dtype == dtype and (product.n % ALIGNED == 0) is aligned:
            found[product.m].append((product.k * product.n, product.seconds))
    return {m: averaged(points) for m, points in sorted(found.items())}


def joining(measured: Calibration, dtype: str) -> dict[float, bool]:
    """m -> whether matrices that take the same x are multiplied as one: where most of those measured lay in an order for that."""
    found: defaultdict[float, list[bool]] = defaultdict(list)
    for product in measured.products:
        if product.dtype == dtype and product.n % ALIGNED == 0:
            found[product.m].append(product.joins)
    return {m: 2 * sum(joins) > len(joins) for m, joins in sorted(found.items())}


def step_curves(attended: Iterable[Attended], width: int) -> dict[float, list[Point]]:
    """Query heads a KV head -> [(cache elements, seconds)] of one new token, for heads of one width."""
    found: defaultdict[float, list[Point]] = defaultdict(list)
    for point in attended:
        if point.new == 1 and point.head_dim == width:
            found[point.heads / point.kv_heads].append((cache_elements(point), point.seconds))
    return {group: averaged(points) for group, points in sorted(found.items())}


def cache_elements(point: Attended) -> int:
    """Elements of keys and values that a point reads."""
    return 2 * point.batch * point.kv_heads * point.context * point.head_dim


def attention_flops(point: Attended) -> float:
    """FLOPs of a point: causal pairs, aligned bottom-right."""
    pairs = point.new * point.context - point.new * (point.new - 1) / 2
    return 4 * point.batch * point.heads * pairs * point.head_dim


def norm_of(spec: ModelSpec) -> str:
    """The kind of the first norm of the main stack's layers, "rms" or "layer"."""
    norms = (norm for layer in spec.main.layers() for sub in layer.sublayers for norm in (sub.pre_norm, sub.output_norm, sub.residual_norm))
    found = next((norm for norm in norms if norm is not None), None)
    return "rms" if found is None or found.type.startswith("rms") else "layer"


def around_rows(measured: Calibration, dtype: str, norm: str, between: float) -> float:
    """Seconds a row costs beside its work, where products read so many bytes each: of models of that kind, else of any, else of
    launching an operator.
    """
    lines = [line for line in measured.overheads if line.dtype == dtype]
    alike = [line for line in lines if line.norm == norm] or lines
    points = averaged((line.between_bytes, line.seconds_per_row) for line in alike)
    return along(points, between, flat=True) if points else measured.launch_s


def is_fused(spec: ModelSpec, work: Pass, joins: dict[float, bool]) -> bool:
    """Whether the sublayers of a pass are one call each: of one token, of the common kinds, with matrices in the order for that.

    Such a call takes, beside its products and attention, about what these lose of their own calls, with which they were measured: from 19
    us a row less to 11 more in twelve measurements with weights of 3 to 61 MiB between calls, where a row by itself costs 19 to 103.
    """
    layers = spec.main.layers()
    common = all(isinstance(sub.mixer, Attention | FeedForward) for layer in layers for sub in layer.sublayers)
    rows = float(work.batch * work.new_tokens)
    return (
        work.decoding
        and work.new_tokens == 1
        and common
        and not any(layer.parallel for layer in layers)
        and joins.get(nearest(joins, rows), False)
    )


def between_runs(runs: Iterable[Run], work: Pass) -> float:
    """Bytes that a product or an attention reads on average, from weights and cache: so much runs through the caches between others."""
    reading = [run for run in runs if kind(run[0]) != "other"]
    read = sum(float(weight_read_bytes(row, work) + moved_bytes(row, work)) for run in reading for row in run)
    return max(1.0, read / max(1, sum(run[0].repeat for run in reading)))


def running_as_one(rows: Sequence[Row], joins: dict[float, bool]) -> list[Run]:
    """Rows that run as one: matrices one after another that take the same x, where they are joined; each other by itself."""
    found: list[Run] = []
    for row in rows:
        if found and takes_the_same(found[-1][-1], row) and joins.get(nearest(joins, float(row.dims["m"])), False):
            found[-1] = (*found[-1], row)
        else:
            found.append((row,))
    return found


def takes_the_same(one: Row, other: Row) -> bool:
    """Whether two rows are matrices of one place for as many rows of as wide an x, and of no odd size."""
    for row in (one, other):
        if row.op != "linear" or not row.fetches or row.dims["n"] % ALIGNED:
            return False
    first, second = ((row.repeat, row.path.rpartition("/")[0], row.dims["m"], row.dims["k"]) for row in (one, other))
    return first == second


def nearest(known: Iterable[float], x: float) -> float:
    """That of some numbers which differs least from x as a factor."""
    return min(known, key=lambda one: abs(math.log(one / x)), default=x)


class Curves(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one format, as functions.

    products: m -> [(k·n, seconds)]; odd_products: the same where the width out is no multiple of ALIGNED, which libraries of
    matrix products take a slower way for (GPT-2's 50257 tokens).
    steps: width of a head -> query heads a KV head -> [(cache elements, seconds)].
    flash: [(new tokens, seconds a FLOP)]. elements: kind of operator -> seconds an element.
    """

    products: dict[float, list[Point]]
    odd_products: dict[float, list[Point]]
    steps: dict[int, dict[float, list[Point]]]
    flash: list[Point]
    elements: dict[str, float]
    row_s: float
    bytes_per_s: float
    flops_per_s: float
    stream: float

    @classmethod
    def of(cls, spec: ModelSpec, runs: Sequence[Run], work: Pass, measured: Calibration, *, fused: bool) -> Curves:
        """Those of the format that `work` computes in, and of models like this one; `fused`: its sublayers are one call each."""
        name = work.activation_dtype.name
        products, odd = (product_curves(measured, name, aligned=aligned) for aligned in (True, False))
        attended = [point for point in measured.attended if point.dtype == name]
        widths = {point.head_dim for point in attended if point.new == 1}
        return cls(
            products=products or odd,
            odd_products=odd or products,
            steps={width: step_curves(attended, width) for width in widths},
            flash=averaged((point.new, point.seconds / attention_flops(point)) for point in attended if point.new > 1),
            elements={line.name: line.seconds_per_element for line in measured.elementwise if line.dtype == name},
            row_s=0.0 if fused else around_rows(measured, name, norm_of(spec), between_runs(runs, work)),
            bytes_per_s=measured.device.memory_bytes_per_s,
            flops_per_s=measured.device.peak_for(name) or 1.0,
            stream=next((yard.stream_bytes_per_s for yard in measured.yards if yard.dtype == name), measured.device.memory_bytes_per_s),
        )

    def row_seconds(self, row: Row, work: Pass) -> float:
        """One run of a row: its product, its attention, or its elements."""
        match row.op:
            case "experts":
                distinct = float(row.dims["distinct"])
                return distinct * self.product(float(row.dims["m"]) / distinct, row.dims["k"], row.dims["n"])
            case "linear" | "conv" if row.fetches:
                return self.product(row.dims["m"], row.dims["k"], row.dims["n"])
            case "attention":
                return self.attend(row, work) + float(TURNING * self.element("add") * row.reads)
            case "scan":
                return float(moved_bytes(row, work) / max(row.repeat, 1) / self.bytes_per_s + self.element("add") * row.writes)
            case "norm":  # and the residual that is added beside it
                return float((self.element("norm") + self.element("add")) * row.writes)
            case "activation":
                gated = self.element("mul") if row.reads > row.writes else 0.0
                return float((self.element(row.path.rpartition("/")[2]) + gated) * row.writes)
            case _:
                return float(self.element("add") * row.writes)

    def paced_seconds(self, run: Run, work: Pass, pace: Pace) -> float:
        """Rows that run as one, once, at another pace: a matrix product where its FLOPs take longer than its bytes at the device's best."""
        row = run[0]
        outputs = sum(one.dims["n"] for one in run) if len(run) > 1 else None
        seconds = self.row_seconds(row, work) if outputs is None else self.product(row.dims["m"], row.dims["k"], outputs)
        moved = sum(float(weight_read_bytes(one, work) + moved_bytes(one, work)) / one.repeat for one in run)
        if sum(float(one.flops) for one in run) * self.bytes_per_s > moved * self.flops_per_s:
            return seconds * pace.matrix
        return paced(seconds, moved / self.stream, pace, ATTENTION_OVERLAP if kind(row) == "attention" else PRODUCT_OVERLAP)

    def element(self, name: str) -> float:
        """Seconds an element of a kind of operator; what was not measured takes as long as its relatives."""
        name = ACTIVATIONS.get(name, name)
        return self.elements.get(name) or self.elements.get("gelu_tanh" if "gelu" in name else "silu", 0.0)

    def around(self, row: Row) -> float:
        """What one run of a row costs beside its work: dispatch, reshaping, residuals."""
        if row.op not in RUNNING:
            return 0.0
        return self.row_s * float(row.dims["distinct"] if row.op == "experts" else 1)

    def product(self, m: Number, k: Number, n: Number) -> float:
        """Seconds of [m, k] @ [k, n], the matrix in memory."""
        return across(self.odd_products if n % ALIGNED else self.products, float(m), lambda points: along(points, float(k * n)))

    def attend(self, row: Row, work: Pass) -> float:
        """Seconds of attention: a step by the cache it reads, many new tokens by their FLOPs."""
        B, N, pairs = (float(row.dims[name]) for name in ("B", "N", "pairs"))
        if not pairs:
            return 0.0
        if work.decoding and self.steps:
            width = float(row.dims["H"] + row.dims["Hv"])
            elements = float(row.store.moved) if row.store else B * pairs * width
            group = max(1.0, B * N * pairs * width / elements)
            return across(self.steps[int(nearest(self.steps, width / 2))], group, lambda points: along(points, elements), flat=True)
        tokens = max(2.0, row.reads / (B * N * float(row.dims["H"])))
        return float(row.flops) * along(self.flash, tokens, flat=True) if self.flash else 0.0


def across(curves: dict[float, list[Point]], at: float, value: Callable[[list[Point]], float], *, flat: bool = False) -> float:
    """The value between two curves; beyond the last one it grows with `at`, below the first it does not shrink."""
    least = next(iter(curves))
    return along([(key, value(points)) for key, points in curves.items()], max(at, least), flat=flat)
