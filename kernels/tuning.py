"""Which call for a linear layer is the fastest on this machine: tried once for each shape, on the weights that a model multiplies by.

PyTorch has several calls for one product, and the library behind them treats one processor's maker otherwise than another's: a table
made on one machine loses half of the bandwidth on the next. What is found holds for the process (`linear.CHOSEN`). Weights may be
faster in another order altogether (`orders`): a model's are then stored so. The attention of one token is tried likewise, by PyTorch's
calls and by loops compiled for it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from . import compiling, grouped
from .fused import fuse, unfuse
from .linear import (
    CALLS,
    CHOSEN,
    USUAL,
    WEIGHTS,
    Key,
    as_usual,
    fast_linear,
    key_of,
    possible_calls,
    usual_call,
)
from .modules import Linear, Named
from .orders import ORDERS, Order
from .panels import PANEL
from .probes import free_memory_bytes, random_tensor
from .stored import lay_back, reorder, taking_the_same
from .timing import (
    Call,
    Sample,
    Stopping,
    Watch,
    buffers_needed,
    in_rotation,
    interleave,
    last_level_cache_bytes,
    quiet_watch,
    rotated,
)

TRYING = Stopping(min_samples=7, min_seconds=0.0, max_seconds=0.15, target_spread=math.inf)
NEAR = 2.0  # times the fastest, at a first try: what is slower is not tried again
GAIN = 1.03  # another call than the usual one has to be so much faster: noise alone changes nothing
LOOPS_GAIN = 1.1  # likewise where weights may lie in panels: several are then one product, and what lies between needs no call
MOST_ROWS = 16  # beyond it the calls come near each other, and trying takes long
MOST_WEIGHTS = 64
TRIED_BYTES = 256 << 20  # of a weight, at most
ORDERED: dict[Key, str | None] = {}  # which of ORDERS a weight that may be moved is stored in, if in any
IMMOVABLE: set[Key] = set()  # tried for weights that have to lie as they do


# --- what is multiplied ---------------------------------------------------------------------------------------------------


@torch.inference_mode()
def tune(model: nn.Module, run: Call, rows: int) -> None:
    """Run a model once, and make every linear layer in it that saw few rows as fast as it can be here.

    Layers whose weights are faster in another order store them so, if there is memory for a second copy, and give up the parameter. A
    table that looks up the same weight keeps it. rows: of x, in most layers.
    """
    untune(model, rows)
    with WEIGHTS.listening() as heard, grouped.READS.listening() as caches, taking_the_same(model) as groups:
        run()
    choose_attention(caches)
    movable = {layer.weight.data_ptr() for group in groups for layer in group if has_room_for(layer.weight.nbytes, layer.weight.device)}
    orders: dict[int, tuple[str, int]] = {}
    while heard:  # and let go of them: a weight that is stored anew must not stay beside it
        key, weights = heard.popitem()
        places = {weight.data_ptr() for weight in weights}
        chosen = choose(key[0], weights, movable=places <= movable)
        if chosen in ORDERS:
            orders |= dict.fromkeys(places, (chosen, key[0]))
        del weights
    for group in groups:
        store(group, orders)
    set_tuned(model, tuned=not USUAL.get())
    fuse(model, rows)
    if not compiling.works(run):  # compiles what was not for trying, as loops that add a bias: not while something is timed
        untune(model, 0)


def untune(model: nn.Module, rows: int) -> None:
    """A model runs as it is described; matrices that are stored for so many rows stay so."""
    unfuse(model)
    lay_back(model, rows)
    set_tuned(model, tuned=False)


def set_tuned(model: nn.Module, *, tuned: bool) -> None:
    """Say to all modules of a model whether they are tuned."""
    for module in model.modules():
        if isinstance(module, Named):
            module.tuned = tuned


def store(layers: Sequence[Linear], orders: Mapping[int, tuple[str, int]]) -> None:
    """Store the weights of layers that take the same x in the order of each, (name, rows) by place: as one where they have the same."""
    together: dict[tuple[str, int], list[Linear]] = {}
    for layer in layers:
        if layer.weight.data_ptr() in orders:
            together.setdefault(orders[layer.weight.data_ptr()], []).append(layer)
    for (name, rows), same in together.items():
        size = sum(layer.weight.nbytes for layer in same)
        for some in [same] if has_room_for(2 * size, same[0].weight.device) else [[layer] for layer in same]:
            reorder(some, ORDERS[name], rows)


def has_room_for(size_bytes: int, device: torch.device) -> bool:
    """Whether so much can be held besides, and as much again."""
    free = free_memory_bytes(device)
    return free is None or 2 * size_bytes <= free


@torch.inference_mode()
def tune_attention(run: Call, times: int = 1) -> None:
    """Run attention of one token over so many caches in turn, and make it as fast as it can be here."""
    with grouped.READS.listening() as caches:
        for _ in range(times):
            run()
    choose_attention(caches)


def product(x: Tensor, weights: Sequence[Tensor]) -> Call:
    """x [R,I] times the next of some weights [O,I] at each call, as a tuned model does it."""
    inference = torch.inference_mode()
    chosen = choose(len(x), weights)
    if chosen not in ORDERS:
        return inference(rotated(partial(fast_linear, x), weights))
    order = ORDERS[chosen]
    stored = [order.store(weight, len(x)) for weight in beyond_cache(weights)]
    return inference(rotated(lambda held: order.product(x, held, None), stored))


# --- what is fastest ------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def choose(rows: int, weights: Sequence[Tensor], *, movable: bool = True) -> str | None:
    """The fastest way for so many rows and weights of one shape, [O,I] each: one of CALLS, or of ORDERS where the weights are `movable`.

    `fast_linear` takes the fastest of CALLS from now on. None where nothing is to be chosen: many rows, no CPU, or `as_usual`.
    """
    weight = weights[0]
    if USUAL.get() or rows > MOST_ROWS or weight.device.type != "cpu":
        return None
    key = key_of(rows, weight)
    if movable and key not in ORDERED:
        call, ORDERED[key] = fastest(rows, weights, movable=True)
        CHOSEN.setdefault(key, call)
    elif not movable and key not in IMMOVABLE:  # more was tried for those: their call holds for all that lie so
        CHOSEN[key], _ = fastest(rows, weights, movable=False)
        IMMOVABLE.add(key)
    return (ORDERED[key] if movable else None) or CHOSEN[key]


def fastest(rows: int, weights: Sequence[Tensor], *, movable: bool) -> tuple[str, str | None]:
    """Try the calls in turn: the usual one unless another is clearly faster, and the order, if any, to store the weights in.

    Weights that may lie in an order with loops do, unless something else is clearly faster: several can then be one product, and a slow
    moment of the machine makes equal what a fast one tells apart. Loops over weights as they lie are not tried then.
    """
    x = random_tensor((rows, weights[0].shape[1]), weights[0].dtype, weights[0].device)
    usual, names = usual_call(rows, weights[0]), possible_calls(rows, weights[0])
    apart = beyond_cache(pieces(weights))
    others = orders_for(x, weights[0], apart[0]) if movable else []
    looped = [name for name in others if ORDERS[name].loops]
    if "compiled" in names and (looped or not compiling.works(partial(CALLS["compiled"], x, apart[0]))):
        names.remove("compiled")
    watch = quiet_watch()
    once = {name: quickest(watch, call) for name, call in in_rotation({name: partial(CALLS[name], x) for name in names}, apart).items()}
    near = [name for name in names if name == usual or once[name] <= NEAR * min(once.values())]
    calls = in_rotation({name: partial(CALLS[name], x) for name in near}, apart)
    for name in others:
        first, product = ORDERS[name].store(apart[0], rows), partial(in_order, name, x)
        # In the cache, where this one stays, it is faster than from memory: not near even so is not near.
        if name in looped or quickest(watch, partial(product, first)) <= NEAR * min(once.values()):
            calls[name] = rotated(product, [first, *(ORDERS[name].store(weight, rows) for weight in apart[1:])])
    found = tried(calls, watch)
    winner = clear_winner(usual, {name: found[name] for name in near})
    preferred, gain = (looped[0], LOOPS_GAIN) if looped else (winner, GAIN)
    best = clear_winner(preferred, {name: sample for name, sample in found.items() if name == winner or name in ORDERS}, gain)
    if looped and best != preferred:  # much hangs on it: once more
        best = clear_winner(preferred, tried({name: calls[name] for name in (preferred, best)}, watch), gain)
    return winner, best if best in ORDERS else None


def tried(calls: Mapping[str, Call], watch: Watch) -> dict[str, Sample]:
    """Samples of calls in turn."""
    found = interleave(dict(calls), watch=watch, stopping=TRYING, warmup=1)
    if any(sample.interrupted for sample in found.values()):
        raise KeyboardInterrupt
    return found


def orders_for(x: Tensor, weight: Tensor, piece: Tensor) -> list[str]:
    """Those of ORDERS that can take these rows of x and this weight; loops are compiled for it, over a piece."""

    def multiplies(order: Order) -> bool:
        return not order.loops or compiling.works(lambda: order.product(x, order.store(piece, len(x)), None))

    return [name for name, order in ORDERS.items() if order.takes(len(x), weight) and multiplies(order)]


def in_order(name: str, x: Tensor, stored: Tensor) -> Tensor:
    """The product with a weight that is stored in one of ORDERS."""
    return ORDERS[name].product(x, stored, None)


def choose_attention(caches: Mapping[grouped.Key, Sequence[grouped.Read]]) -> None:
    """For each kind of attention that was heard, whether compiled loops are clearly faster than PyTorch's calls (`grouped.CHOSEN`)."""
    for key, reads in caches.items():
        if not USUAL.get() and key not in grouped.CHOSEN:
            grouped.CHOSEN[key] = loops_are_faster(reads)


def loops_are_faster(reads: Sequence[grouped.Read]) -> bool:
    """Try both in turn, over what attention reads."""
    if not compiling.works(lambda: through_loops(reads[0])):
        return False
    ways = {"products": as_usual()(lambda read: grouped.grouped(*read)), "loops": through_loops}
    return clear_winner("products", tried(in_rotation(ways, caches_beyond_cache(reads)), quiet_watch())) == "loops"


def through_loops(read: grouped.Read) -> Tensor:
    """One read by compiled loops."""
    seen = grouped.one_token(*read)
    assert seen is not None
    return grouped.by_loops(*seen, read[3])


def quickest(watch: Watch, call: Call) -> float:
    """Seconds of the faster of two runs."""
    return min(watch(call, 1) for _ in range(2))


def clear_winner(usual: str, found: Mapping[str, Sample], gain: float = GAIN) -> str:
    """The fastest if it is faster than the usual one by `gain`, else that one: by the median over rounds of how many times longer than the
    fastest of its round each took. The machine may be another in the next round, and one sample the luckiest of all.
    """
    rounds = list(zip(*(sample.times for sample in found.values()), strict=False))
    longer = zip(found, zip(*([time / min(times) for time in times] for times in rounds), strict=True), strict=True)
    middle = {name: statistics.median(ratios) for name, ratios in longer}
    winner = min(middle, key=lambda name: middle[name])
    return winner if middle[usual] > gain * middle[winner] else usual


def pieces(weights: Sequence[Tensor]) -> list[Tensor]:
    """The weights, large ones in equal pieces: what is fastest for one is so for the whole, and takes less time and memory to find."""
    outputs, inputs = weights[0].shape
    most = TRIED_BYTES // weights[0].itemsize // inputs // PANEL * PANEL
    if outputs <= most or not most:
        return list(weights)
    return [piece for weight in weights for piece in weight.split(most) if len(piece) == most]


def beyond_cache(weights: Sequence[Tensor]) -> list[Tensor]:
    """The weights, one of each place in memory, with copies where all together might stay in the cache."""
    apart = list({weight.data_ptr(): weight for weight in weights}.values())
    needed = buffers_for(apart[0].nbytes, apart[0].device)
    return apart[:needed] + [apart[index % len(apart)].clone() for index in range(needed - len(apart))]


def caches_beyond_cache(reads: Sequence[grouped.Read]) -> list[grouped.Read]:
    """What attention reads, likewise: copies of keys and values where all together might stay in the processor's cache."""
    _, k, v, _ = reads[0]
    needed = buffers_for(k.nbytes + v.nbytes, k.device)
    copies = (reads[index % len(reads)] for index in range(needed - len(reads)))
    return [*reads[:needed], *((q, k.clone(), v.clone(), rules) for q, k, v, rules in copies)]


def buffers_for(size_bytes: int, device: torch.device) -> int:
    """How many buffers of a size take turns."""
    return min(MOST_WEIGHTS, buffers_needed(size_bytes, last_level_cache_bytes(), free_bytes=free_memory_bytes(device)))
