"""How good the measured gate of `tfm check` is: how often it cries wolf on the same code, and how often it finds a real slowdown.

    python benchmarks/check_gates.py --log runs.jsonl        400 runs of the same code, 128 with a slowdown: two to three hours
    python benchmarks/check_gates.py --log runs.jsonl --report

A run is a gate of about ten seconds (a decode step of one layer and the head of llama-7b in bf16, or `--gate attention`), compared
with a baseline of the process before it; every ten runs a new process. A third of the runs has a busy neighbour, a process that
streams memory or spins in turns. A slowdown is work put into the step: it multiplies so many more bytes. Order is random; the log can
be gone on with.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from scipy.stats import binomtest

from tfm.kernels import gates
from tfm.kernels.benchmarks.setting import Setting
from tfm.kernels.probes import ROW, random_tensor
from tfm.kernels.timing import Call, quiet_watch, rotated
from tfm.presets.baseline import Gate, Measurements

GATES = {
    "decode": Gate(what="decode", model="llama-7b", layers=1, dtype="bf16", batch=1, context=512),
    "attention": Gate(what="attention", model="llama-7b", layers=1, dtype="bf16", batch=1, context=8192),
}
PLAN = gates.Plan(builds=2, blocks=5, pairs=3, seconds=0.3)
THRESHOLD = 0.05
CURVE = {0.0: 400, 0.10: 80, 0.03: 12, 0.05: 12, 0.07: 12, 0.15: 12}  # slowdown -> runs
EACH = 10
Run = dict[str, Any]


def schedule(scale: float) -> list[Run]:
    """Every run, in random order; each third one beside a neighbour."""
    runs = [{"slow": slow, "busy": index % 3 == 0} for slow, count in CURVE.items() for index in range(round(count * scale))]
    random.Random(7).shuffle(runs)
    return runs


# --- one process: some runs, and a baseline for the next process ------------------------------------------------------


Stepped = Callable[..., tuple[Call, float, float]]


def slowed(plain: Stepped, share: float) -> Stepped:
    """`gates.stepped` with a step that takes `share` longer: it reads and multiplies rows that nobody asked for."""

    def stepped(gate: Gate, setting: Setting, seed: int) -> tuple[Call, float, float]:
        step, moved_bytes, flops = plain(gate, setting, seed)
        guess = round(share * moved_bytes / torch.bfloat16.itemsize / ROW)
        rows = round(guess * share / cost(reading(guess, setting), step))
        more = reading(rows, setting)
        return lambda: (step(), more()), moved_bytes, flops

    return stepped


def reading(rows: int, setting: Setting) -> Call:
    """A product over so many rows, of copies that rotate."""
    pool, vector = (random_tensor(shape, torch.bfloat16, setting.device) for shape in ((8, rows, ROW), (ROW,)))
    return rotated(lambda matrix: torch.mv(matrix, vector), list(pool))


@torch.inference_mode()
def cost(call: Call, step: Call) -> float:
    """A call's time over that of the step it runs after, from seven of each in turn."""
    watch = quiet_watch()
    pairs = [(watch(step, 1), watch(call, 1)) for _ in range(7)]
    return statistics.median(more / time for time, more in pairs)


def child(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The results of some runs, then a new baseline."""
    plain = gates.stepped
    for run in asked["runs"]:
        baseline = msgspec.convert(asked["baseline"], Measurements)
        gates.stepped = slowed(plain, run["slow"]) if run["slow"] else plain
        neighbour = subprocess.Popen([sys.executable, __file__, "--neighbour"]) if run["busy"] else None
        start = time.perf_counter()
        try:
            ((measured, judgement),) = gates.check_gates(baseline, threshold=THRESHOLD, plan=PLAN)
        finally:
            if neighbour:
                neighbour.kill()
                neighbour.wait()
        again = len(measured.efficiencies) > PLAN.builds * PLAN.blocks
        yield run | msgspec.to_builtins(judgement) | {"again": again, "seconds": time.perf_counter() - start, "load": os.getloadavg()[0]}
    gates.stepped = plain
    yield {"baseline": msgspec.to_builtins(gates.measure_gates((GATES[asked["gate"]],), threshold=THRESHOLD, plan=PLAN))}


def neighbour() -> None:
    """Streams memory for a while, then computes for a while, on one thread, for ever."""
    torch.set_num_threads(1)
    memory, small = torch.rand(64 << 20), torch.rand(64, 64)
    calls: tuple[Call, ...] = (memory.sum, lambda: small @ small)
    while True:
        for call in calls:
            until = time.perf_counter() + random.uniform(0.2, 2)
            while time.perf_counter() < until:
                call()


# --- all processes ----------------------------------------------------------------------------------------------------


def run_all(gate: str, runs: Sequence[Run], log: Path) -> None:
    """Run what the log does not hold yet."""
    left = missing(runs, logged(log))
    baseline = None
    for start in range(-EACH, len(left), EACH):  # the first process only makes a baseline
        asked = {"gate": gate, "baseline": baseline, "runs": left[max(start, 0) : max(start + EACH, 0)]}
        with subprocess.Popen([sys.executable, __file__, "--child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps(asked))
            process.stdin.close()
            for line in map(json.loads, process.stdout):
                if "baseline" in line:
                    baseline = line["baseline"]
                else:
                    with log.open("a") as file:
                        file.write(json.dumps(line) + "\n")
        if process.returncode:
            raise SystemExit(f"a child ended with {process.returncode}")


def missing(runs: Sequence[Run], done: Sequence[Run]) -> list[Run]:
    """The runs without those that were made, each kind by its number."""
    made = Counter((run["slow"], run["busy"]) for run in done)
    left = []
    for run in runs:
        made[run["slow"], run["busy"]] -= 1
        if made[run["slow"], run["busy"]] < 0:
            left.append(run)
    return left


def logged(log: Path) -> list[dict[str, Any]]:
    """What was run already."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def report(found: Sequence[dict[str, Any]]) -> str:
    """The table: for each slowdown, alone and beside a neighbour, how often the gate failed, with its 95 % limits."""
    lines = ["| slowdown put in | neighbour | runs | seen (median) | called slower | 95 % limits | measured again | seconds |"]
    lines.append("|--:|:--|--:|--:|--:|--:|--:|--:|")
    for slow in sorted({run["slow"] for run in found}):
        for name, kinds in (("no", (False,)), ("busy", (True,)), ("both", (False, True))):
            some = [run for run in found if run["slow"] == slow and run["busy"] in kinds]
            if not some:
                continue
            failed = sum(run["verdict"] == "slower" for run in some)
            limits = binomtest(failed, len(some)).proportion_ci(0.95)
            seen, seconds = (sorted(run[key] for run in some)[len(some) // 2] for key in ("slowdown", "seconds"))
            twice = sum(run["again"] for run in some)
            share, between = f"{failed} ({failed / len(some):.1%})", f"{limits.low:.1%} to {limits.high:.1%}"
            cells = (f"{slow:.0%}", name, len(some), f"{seen:+.1%}", share, between, twice, f"{seconds:.1f}")
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    alarms = [run for run in found if not run["slow"]]
    if alarms:
        upper = binomtest(sum(run["verdict"] == "slower" for run in alarms), len(alarms), alternative="less").proportion_ci(0.95).high
        lines.append(f"\nfalse alarms: at most {upper:.1%} (one-sided 95 % limit)")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--log", type=Path, default=Path("check_gates.jsonl"))
    parser.add_argument("--gate", choices=GATES, default="decode")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the runs")
    for name in ("report", "child", "neighbour"):
        parser.add_argument(f"--{name}", action="store_true")
    given = parser.parse_args()
    if given.neighbour:
        neighbour()
    if given.child:
        for line in child(json.load(sys.stdin)):
            print(json.dumps(line), flush=True)
        return 0
    if not given.report:
        run_all(given.gate, schedule(given.scale), given.log)
    print(report(logged(given.log)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
