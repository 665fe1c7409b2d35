"""Which call for a linear layer is the fastest on this machine: tried once for each shape, on the weights that a model multiplies by.

PyTorch has several calls for one product, and the library behind them treats one processor's maker otherwise than another's: a table
made on one machine loses half of the bandwidth on the next. What is found holds for the process (`linear.CHOSEN`). bf16 weights may be
faster in another order altogether (`linear.reordered`): a model's are then stored so. The attention of one token is tried likewise, by
PyTorch's calls and by loops compiled for it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from . import compiling, grouped
from .linear import (
    CALLS,
    CHOSEN,
    USUAL,
    WEIGHTS,
    Key,
    as_usual,
    by_reordered,
    fast_linear,
    key_of,
    possible_calls,
    reordered,
    reorders,
    usual_call,
)
from .modules import Linear
from .packed import reorder
from .probes import free_memory_bytes, random_tensor
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
MOST_ROWS = 16  # beyond it the calls come near each other, and trying takes long
MOST_WEIGHTS = 64
REORDERED: dict[Key, bool] = {}  # whether another order is faster than any call on the weight as it lies


# --- what is multiplied ---------------------------------------------------------------------------------------------------


@torch.inference_mode()
def tune(model: nn.Module, run: Call) -> None:
    """Run a model once, and make every linear layer in it that saw few rows as fast as it can be here.

    Layers whose weights are faster in another order store them so, and give up the parameter.
    """
    with WEIGHTS.listening() as heard, grouped.READS.listening() as caches:
        run()
    choose_attention(caches)
    rows: dict[int, int] = {}
    while heard:  # and let go of them: a weight that is stored anew must not stay beside it
        key, weights = heard.popitem()
        if choose(key[0], weights) == "reordered":
            rows |= dict.fromkeys((weight.data_ptr() for weight in weights), key[0])
        del weights
    for module in list(model.modules()):
        if isinstance(module, Linear) and module.weight is not None and module.weight.data_ptr() in rows:
            reorder(module, rows[module.weight.data_ptr()])
    compiling.works(run)  # what was not compiled for trying, as loops that add a bias, is not to be while something is timed


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
    if choose(len(x), weights) != "reordered":
        return inference(rotated(partial(fast_linear, x), weights))
    return inference(rotated(partial(by_reordered, x), [reordered(weight, len(x)) for weight in beyond_cache(weights)]))


# --- what is fastest ------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def choose(rows: int, weights: Sequence[Tensor]) -> str | None:
    """The fastest way for so many rows and weights of one shape, [O,I] each: one of CALLS, or "reordered".

    `fast_linear` takes the fastest of CALLS from now on. None where nothing is to be chosen: many rows, no CPU, or `as_usual`.
    """
    weight = weights[0]
    if USUAL.get() or rows > MOST_ROWS or weight.device.type != "cpu":
        return None
    key = key_of(rows, weight)
    if key not in CHOSEN:
        CHOSEN[key], REORDERED[key] = fastest(rows, weights)
    return "reordered" if REORDERED[key] else CHOSEN[key]


def fastest(rows: int, weights: Sequence[Tensor]) -> tuple[str, bool]:
    """Try the calls in turn: the usual one unless another is clearly faster, and whether another order is clearly faster than that."""
    x = random_tensor((rows, weights[0].shape[1]), weights[0].dtype, weights[0].device)
    usual, names = usual_call(rows, weights[0]), possible_calls(rows, weights[0])
    if "compiled" in names and not compiling.works(partial(CALLS["compiled"], x, weights[0])):
        names.remove("compiled")
    apart = beyond_cache(weights)
    watch = quiet_watch()
    once = {name: quickest(watch, call) for name, call in in_rotation({name: partial(CALLS[name], x) for name in names}, apart).items()}
    near = [name for name in names if name == usual or once[name] <= NEAR * min(once.values())]
    # In the cache, where the one weight that is reordered for it stays, it is faster than from memory: not near even so is not near.
    other = reorders(weights[0]) and quickest(watch, partial(by_reordered, x, reordered(weights[0], rows))) <= NEAR * min(once.values())
    pairs = [(weight, reordered(weight, rows) if other else weight) for weight in apart]
    calls = {name: partial(on_plain, CALLS[name], x) for name in near} | ({"reordered": partial(on_other, x)} if other else {})
    found = interleave(in_rotation(calls, pairs), watch=watch, stopping=TRYING, warmup=0)
    if any(sample.interrupted for sample in found.values()):
        raise KeyboardInterrupt
    winner = clear_winner(usual, {name: found[name] for name in near})
    return winner, other and clear_winner(winner, {name: found[name] for name in (winner, "reordered")}) == "reordered"


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
    found = interleave(in_rotation(ways, caches_beyond_cache(reads)), watch=quiet_watch(), stopping=TRYING, warmup=1)
    if any(sample.interrupted for sample in found.values()):
        raise KeyboardInterrupt
    return clear_winner("products", found) == "loops"


def through_loops(read: grouped.Read) -> Tensor:
    """One read by compiled loops."""
    seen = grouped.one_token(*read)
    assert seen is not None
    return grouped.by_loops(*seen, read[3])


def on_plain(call: Callable[[Tensor, Tensor], Tensor], x: Tensor, pair: tuple[Tensor, Tensor]) -> Tensor:
    """A call on a weight as it lies."""
    return call(x, pair[0])


def on_other(x: Tensor, pair: tuple[Tensor, Tensor]) -> Tensor:
    """The product with the same weight in oneDNN's order."""
    return by_reordered(x, pair[1])


def quickest(watch: Watch, call: Call) -> float:
    """Seconds of the faster of two runs."""
    return min(watch(call, 1) for _ in range(2))


def clear_winner(usual: str, found: Mapping[str, Sample]) -> str:
    """The fastest if it is faster than the usual one by GAIN, else that one: by the median over rounds of how many times longer than the
    fastest of its round each took. The machine may be another in the next round, and one sample the luckiest of all.
    """
    rounds = list(zip(*(sample.times for sample in found.values()), strict=False))
    longer = zip(found, zip(*([time / min(times) for time in times] for times in rounds), strict=True), strict=True)
    middle = {name: statistics.median(ratios) for name, ratios in longer}
    winner = min(middle, key=lambda name: middle[name])
    return winner if middle[usual] > GAIN * middle[winner] else usual


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
