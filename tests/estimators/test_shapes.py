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

from tfm.estimators.layer_shapes import FLOWS
from tfm.estimators.ledger import GENERATORS, ledger
from tfm.estimators.raw_data import grid
from tfm.estimators.rows import Row
from tfm.estimators.shapes import shapes
from tfm.estimators.tensors import ONE, Dim, Term, elements, sizes, symbols
from tfm.estimators.work import Pass, Phase
from tfm.presets import spec as s
from tfm.presets.errors import TfmError
from tfm.presets.huggingface import read_config
from tfm.presets.loader import load_model, model_names

ORACLE = Path(__file__).parents[1] / "data" / "oracle"
ANY_FLOWS: dict[Any, Any] = FLOWS  # a stand-in's arguments are not checked
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


# --- to the last shape ------------------------------------------------------------------------------------------------

TRAINED = {
    "encoder/ids": [2, 3],
    "encoder/embedding/token": [2, 3, 8],
    "encoder/embedding/sum": [2, 3, 8],
    "encoder/attention/q": [2, 2, 3, 4],
    "encoder/attention/k": [2, 2, 3, 4],
    "encoder/attention/v": [2, 2, 3, 4],
    "encoder/attention/scores": [2, 2, 3, 3],
    "encoder/attention/values": [2, 2, 3, 4],
    "encoder/attention/joined": [2, 3, 8],
    "encoder/attention/o_proj": [2, 3, 8],
    "encoder/feed_forward/up_proj": [2, 3, 16],
    "encoder/feed_forward/down_proj": [2, 3, 8],
    "encoder/output": [2, 3, 8],
    "decoder/ids": [2, 4],
    "decoder/attention/q": [2, 2, 4, 4],
    "decoder/attention/k": [2, 2, 4, 4],
    "decoder/attention/v": [2, 2, 4, 4],
    "decoder/attention/masked_scores": [2, 2, 4, 4],
    "decoder/cross_attention/q": [2, 2, 4, 4],
    "decoder/cross_attention/k": [2, 2, 3, 4],
    "decoder/cross_attention/v": [2, 2, 3, 4],
    "decoder/cross_attention/scores": [2, 2, 4, 3],
    "decoder/cross_attention/values": [2, 2, 4, 4],
    "decoder/cross_attention/o_proj": [2, 4, 8],
    "logits": [2, 4, 100],
    "labels": [2, 4],
    "loss": [],
}


def outputs(name: str, **fields: Any) -> dict[str, list[int]]:
    return {term.path: sizes(term.output) for term in shapes(load_model(name), Pass(**fields))}


def test_the_worked_example_in_training() -> None:
    assert TRAINED.items() <= outputs("transformer-toy", phase="train", batch=2, source=3, context=4).items()


@pytest.mark.parametrize("t", [0, 1, 7])
def test_the_worked_example_step_by_step(t: int) -> None:
    found = outputs("transformer-toy", phase="decode", batch=1, source=3, context=t + 1)
    expected = {f"decoder/attention/{name}": [1, 2, 1, 4] for name in "qkv"}
    expected |= {f"decoder/attention/{name}_cache": [1, 2, t + 1, 4] for name in "kv"}
    expected |= {"decoder/attention/scores": [1, 2, 1, t + 1], "decoder/cross_attention/scores": [1, 2, 1, 3], "logits": [1, 1, 100]}
    expected |= {f"decoder/cross_attention/{name}": [1, 2, 3, 4] for name in "kv"}
    assert expected.items() <= found.items()
    assert not [path for path in found if path.startswith(("encoder/", "decoder/cross_attention/k_proj"))]


def test_letters_and_numbers_are_one() -> None:
    terms = {term.path: term for term in shapes(load_model("llama-3-8b"), Pass(batch=2, context=9))}
    assert symbols(terms["decoder/attention/scores"].output) == ["B", "N", "T", "S"]
    assert symbols(terms["decoder/attention/k"].output) == ["B", "K", "T", "H"]
    assert sizes(terms["decoder/attention/k"].output) == [2, 8, 9, 128]
    step = {term.path: term for term in shapes(load_model("gpt-oss-20b"), Pass(phase="decode", context=300))}
    assert symbols(step["decoder/sliding/attention/k_cache"].output) == ["B", "K", "W", "H"]
    assert sizes(step["decoder/sliding/attention/scores"].output) == [1, 64, 1, 128]
    assert sizes(step["decoder/global/attention/scores"].output) == [1, 64, 1, 300]


@pytest.mark.parametrize(
    ("name", "path", "expected"),
    [
        pytest.param("bert-base", "pooler/dense", [3, 768], id="a pooler sees one position"),
        pytest.param("vit-b-16", "vision/pixels", [3, 3, 224, 224], id="pixels"),
        pytest.param("vit-b-16", "vision/embedding/joined", [3, 197, 768], id="patches behind a class token"),
        pytest.param("whisper-large-v3", "encoder/frames", [3, 128, 3000], id="mel frames"),
        pytest.param("whisper-large-v3", "encoder/output", [3, 1500, 1280], id="a stride halves them"),
        pytest.param("mixtral-8x7b", "decoder/moe/experts/up_proj", [3 * 5 * 2, 14336], id="two experts a token"),
    ],
)
def test_other_inputs(name: str, path: str, expected: list[int]) -> None:
    assert outputs(name, batch=3, context=5)[path] == expected


def test_every_kind_of_row_has_its_flow() -> None:
    assert set(FLOWS) == {*GENERATORS, s.Chain}


def test_sizes_multiply_with_their_letters() -> None:
    assert Dim("N", 3) * Dim("H", 5) == Dim("N·H", 15)
    assert Dim("R", 3) + Dim("r", 2) == Dim("R+r", 5)
    assert Dim("B", 4) * ONE == Dim("B", 4)
    assert grid(12, 2) == (3, 4)


# --- the checks above can fail ------------------------------------------------------------------------------------------


def test_a_row_without_tensors_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, flow = load_model("transformer-toy"), FLOWS[s.FeedForward]
    monkeypatch.setitem(ANY_FLOWS, s.FeedForward, lambda here, mixer: here.left.pop("relu") and flow_without(here, mixer))
    assert disagreements(spec, Pass(batch=2, context=4, source=3, full_attention=True)) == [
        f"{stack}/feed_forward/relu has no tensors" for stack in ("encoder", "decoder")
    ]
    assert flow is not FLOWS[s.FeedForward]


def flow_without(here: Any, mixer: s.FeedForward) -> Any:
    here.linear("up_proj", here.lead, n="F")
    return here.linear("down_proj", here.lead, Dim("F", mixer.d_ff))


def test_a_wrong_split_into_heads_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = load_model("llama-3-8b")
    flow = FLOWS[s.Attention]
    monkeypatch.setitem(ANY_FLOWS, s.Attention, lambda here, mixer: flow(here, replace(mixer, heads=mixer.heads // 2)))
    work = Pass(batch=2, context=9, full_attention=True)
    assert any("scores" in line and "FLOPs" in line for line in disagreements(spec, work))
    assert letters(shapes(spec, work)) != []
