"""Every tensor against the row that counts it, and the worked example to the last shape."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from tfm.estimators.ledger import ledger
from tfm.estimators.rows import Row
from tfm.estimators.shapes import shapes
from tfm.estimators.tensors import Term, elements, sizes
from tfm.estimators.work import Pass, Phase
from tfm.presets import spec as s
from tfm.presets.errors import TfmError
from tfm.presets.huggingface import read_config
from tfm.presets.loader import load_model, model_names

ORACLE = Path(__file__).parents[1] / "data" / "oracle"
PRODUCTS = ("linear", "conv", "experts", "attention", "scan")
PHASES: tuple[Phase, ...] = ("prefill", "decode", "train")


def described() -> Iterator[Any]:
    """One configuration of every file of the oracle, the second where there are two: small sizes, all of them uneven."""
    for path in sorted(ORACLE.glob("*.yaml")):
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        for case in data["cases"][:4]:
            config = {"model_type": data["model_type"], "architectures": [case["class"]], **case["config"]}
            if "refused" not in case:
                yield pytest.param(config, id=f"{data['model_type']}-{case['id']}")


def disagreements(spec: s.ModelSpec, work: Pass) -> list[str]:
    """Where the tensors of a pass and its ledger say different things."""
    rows = {row.path: row for row in ledger(spec, work) if row.repeat}
    made: dict[str, list[Term]] = defaultdict(list)
    for term in shapes(spec, work):
        if term.row:
            made[term.row].append(term)
    found = [f"{path} has tensors and no row" for path in made if path not in rows]
    for path, row in rows.items():
        if path in made or row.op != "parameter":
            found += against(row, made[path], cut=has_blocks(spec))
    return found


def has_blocks(spec: s.ModelSpec) -> bool:
    """Whether some attention is cut into blocks, whose scores the square does not count."""
    return any(isinstance(sub.mixer, s.Attention) and isinstance(sub.mixer.mask, s.Blocked) for _, sub in spec.sublayers())


def against(row: Row, terms: list[Term], *, cut: bool) -> Iterator[str]:
    """One row: it has tensors, runs as often as they are made, and does their multiply-adds over their elements."""
    if not terms:
        yield f"{row.path} has no tensors"
        return
    if sum({term.path: term.repeat for term in terms}.values()) != row.repeat * len({term.path for term in terms}):
        yield f"{row.path} runs {row.repeat} times, its tensors {[term.repeat for term in terms]}"
    flops = 2 * sum(term.multiply_adds for term in terms)
    if row.op in PRODUCTS and flops != row.flops and not (cut and row.op == "attention" and flops > row.flops):
        yield f"{row.path} has {row.flops} FLOPs, its tensors {flops}"
    if row.op in ("linear", "experts") and len(terms) == 1:
        taken = elements(terms[0].inputs[0]) + (elements(terms[0].inputs[1]) if not row.fetches else 0)
        if row.writes and (elements(terms[0].output), taken) != (row.writes, row.reads):
            yield f"{row.path} reads {row.reads} and writes {row.writes}; {shown(terms[0])}"
    weights = sum(elements(shape) for shape in terms[0].inputs[1:])
    if terms[0].op == "linear" and row.op == "linear" and row.weight_reads not in (0, weights):
        yield f"{row.path} reads {row.weight_reads} weights; {shown(terms[0])}"
    if row.op == "experts" and weights != row.params:
        yield f"{row.path} has {row.params} weights; {shown(terms[0])}"
    if row.op == "conv" and elements(terms[-1].output) != row.writes:
        yield f"{row.path} writes {row.writes}; {shown(terms[-1])}"
    if row.path.endswith("attention/scores") and row.op == "attention":
        scores, values = terms[0], terms[-1]
        if (elements(scores.inputs[0]), elements(values.output)) != (row.reads, row.writes):
            yield f"{row.path} reads {row.reads} and writes {row.writes}; {shown(scores)}, {shown(values)}"


def shown(term: Term) -> str:
    """A term on a line."""
    return f"{term.path}: {[sizes(shape) for shape in term.inputs]} -> {sizes(term.output)}"


ATOM = r"[A-Za-z][A-Za-z']*"


def letters(terms: tuple[Term, ...]) -> list[str]:
    """Where a letter has two sizes within a sublayer, or a product of letters is not their product."""
    places: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for term in terms:
        place = "/".join(term.path.split("/")[:-1])
        for dim in (dim for shape in (*term.inputs, term.output) for dim in shape):
            places[place][dim.symbol].add(dim.size)
    found = []
    for place, known in places.items():
        for symbol, values in known.items():
            if len(values) > 1:
                found.append(f"{place}: {symbol} is {sorted(values)}")
            if value_of(symbol, known) not in (None, *values):
                found.append(f"{place}: {symbol} is {sorted(values)}, its letters give {value_of(symbol, known)}")
    return found


def value_of(symbol: str, known: dict[str, set[int]]) -> int | None:
    """What a product of letters is by the letters alone; None for a letter, or where one of them is not known."""
    atoms = re.findall(ATOM, symbol)
    if symbol in atoms or not atoms or not all(len(known.get(atom, ())) == 1 for atom in atoms):
        return None
    formula = re.sub(ATOM, lambda match: str(min(known[match.group()])), symbol)
    return int(eval(formula.replace("·", "*").replace("/", "//")))


def passes(spec: s.ModelSpec) -> Iterator[Pass]:
    """Uneven passes of every phase, with the square counted."""
    for phase in PHASES:
        if phase != "decode" or spec.decodes:
            images = 2 if any(stack.tokens == "image" for stack in spec.stacks) else None
            yield Pass(phase=phase, batch=3, context=37, source=22, images=images, full_attention=True)


@pytest.mark.parametrize("name", model_names())
def test_presets_agree_with_their_ledgers(name: str) -> None:
    spec = load_model(name)
    for work in passes(spec):
        assert disagreements(spec, work) == []
        assert letters(shapes(spec, work)) == []
        assert letters(shapes(spec, replace(work, full_attention=False, context=9001))) == []


@pytest.mark.parametrize("config", list(described()))
def test_configurations_agree_with_their_ledgers(config: dict[str, Any]) -> None:
    try:
        spec = read_config(config)
    except TfmError:
        pytest.skip("not read")
    for work in passes(spec):
        assert disagreements(spec, work) == []
        assert letters(shapes(spec, work)) == []
