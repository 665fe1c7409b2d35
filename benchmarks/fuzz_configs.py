"""Mutated configurations: every one gives a model or one clear line, in bounded time.

python benchmarks/fuzz_configs.py [COUNT] [SEED]     100,000 mutations unless said; exit 1 at the first that is neither

The seeds are the configurations of tests/data/oracle. Each is changed in one to four places (a value of another kind, an
absurd size, a key gone or doubled, a section moved), then read, counted and given a cache; every tenth is broken as text.
"""

from __future__ import annotations

import copy
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from tfm.estimators.kvcache import growth
from tfm.estimators.params import params
from tfm.estimators.work import Pass
from tfm.presets.errors import TfmError
from tfm.presets.huggingface import read_config, supported_types

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "data" / "oracle"
SECONDS = 5.0  # no single configuration may take longer
Json = Any

NUMBERS: tuple[Json, ...] = (0, 1, -1, 2, 3, 7, 64, 4096, 4097, 2**31, 2**40, 2**63, 10**29, 0.5, -0.0, 1e308, float("inf"), float("-inf"))
ODD: tuple[Json, ...] = (None, True, False, "", "silu", "full_attention", "\ud800", "x" * 5000, [], {}, [[]], [None], {"a": {}}, [1, 2, 3])


def seeds() -> list[dict[str, Json]]:
    """Every configuration of the facts whose type is understood."""
    found: list[dict[str, Json]] = []
    for path in sorted(FOLDER.glob("*.yaml")):
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if data["model_type"] in supported_types():
            found += [{"model_type": data["model_type"], "architectures": [case["class"]], **case["config"]} for case in data["cases"]]
    return found


def places(value: Json, path: tuple[Json, ...] = ()) -> list[tuple[Json, ...]]:
    """The paths of everything inside a value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [deeper for key, item in inside for deeper in [(*path, key), *places(item, (*path, key))]]


def odd_value(old: Json, rng: random.Random) -> Json:
    """Something else in place of `old`: a near number, an absurd one, another kind."""
    choice = rng.random()
    if isinstance(old, int) and not isinstance(old, bool) and choice < 0.4:
        return rng.choice((old + 1, old - 1, old * 2, old // 2, -old, old * 10**6, float(old), str(old)))
    if isinstance(old, list) and choice < 0.4:
        return rng.choice((old[:-1], old * 2, old + old[:1], old[::-1], [old], old * 300))
    if isinstance(old, bool) and choice < 0.5:
        return not old
    return rng.choice(NUMBERS) if choice < 0.7 else copy.deepcopy(rng.choice(ODD))


def mutate(config: dict[str, Json], keys: list[str], rng: random.Random) -> dict[str, Json]:
    """A copy with one to four changes; `keys` are those that other families know."""
    made = copy.deepcopy(config)
    for _ in range(rng.randint(1, 4)):
        paths = places(made)
        if not paths or rng.random() < 0.15:
            made[rng.choice(keys)] = odd_value(rng.randint(1, 64), rng)
            continue
        *head, last = rng.choice(paths)
        holder: Json = made
        for step in head:
            holder = holder[step]
        if rng.random() < 0.2:
            del holder[last]
        else:
            holder[last] = odd_value(holder[last], rng)
    return made


def break_text(text: str, rng: random.Random) -> bytes:
    """JSON text with a piece cut out, doubled or replaced."""
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    start = rng.randrange(len(data))
    piece = data[start : start + rng.randint(1, 20)]
    data[start : start + len(piece)] = rng.choice((b"", bytes(piece) * 2, b"NaN", b"[" * 200, rng.randbytes(3), b'"a":1,"a":2', b"9" * 50))
    return bytes(data)


def attempt(source: Any, *, lenient: bool) -> str:
    """`model`, or `refused` in one printable line; whatever else is raised passes through."""
    try:
        spec = read_config(source, lenient=lenient)
        params(spec)
        growth(spec, Pass(context=64))
    except TfmError as error:
        line = str(error)
        line.encode("utf-8")
        if "\n" in line:
            raise ValueError(f"more than one line: {line!a}") from error
        return "refused"
    return "model"


def run(count: int, seed: int) -> Counter[str]:
    """Try `count` mutations; an exception that is no TfmError, or a slow one, ends it with the configuration that did it."""
    rng = random.Random(seed)
    starts = seeds()
    keys = sorted({key for config in starts for key in config})
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "config.json")
        for index in range(count):
            config = mutate(rng.choice(starts), keys, rng)
            source: Any = config
            if index % 10 == 0:
                file.write_bytes(break_text(json.dumps(config), rng))
                source = file
            before = time.perf_counter()
            try:
                outcomes[attempt(source, lenient=rng.random() < 0.3)] += 1
            except Exception as error:
                shown = file.read_bytes() if source is file else json.dumps(config)[:2000]
                raise RuntimeError(f"mutation {index} of seed {seed}: {type(error).__name__} on {shown!a}") from error
            if time.perf_counter() - before > SECONDS:
                raise RuntimeError(f"mutation {index} of seed {seed} took more than {SECONDS} s: {json.dumps(config)[:2000]}")
    return outcomes


def main() -> None:
    """Run as a program."""
    count, seed = (int(word) for word in (*sys.argv[1:], *("100000", "0")[len(sys.argv) - 1 :]))
    before = time.perf_counter()
    outcomes = run(count, seed)
    seconds = time.perf_counter() - before
    print(f"{count} mutations in {seconds:.0f} s: {outcomes['model']} models, {outcomes['refused']} refused in one line, nothing else")


if __name__ == "__main__":
    main()
