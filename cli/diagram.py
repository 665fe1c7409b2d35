"""The way of the tensors drawn as text: a column for each stack, a box for each kind of layer, shapes on every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..estimators.tensors import Shape, Term
    from ..presets.spec import ModelSpec, Stack, Sublayer

Text = Callable[["Shape"], str]
PRODUCTS = ("linear", "experts", "conv", "scan")
WIDTH, BETWEEN = 80, 3


def diagram(spec: ModelSpec, terms: Sequence[Term], text: Text) -> str:
    """Stacks side by side where they fit into 80 columns, else one below another; what stands on top comes last."""
    columns = [column for stack in spec.stacks if (column := stack_lines(stack, terms, text))]
    tops = {f"{stack.name}/" for stack in spec.stacks}
    top = [f"{term.path} {text(term.output)}" for term in terms if not any(term.path.startswith(name) for name in tops)]
    drawn = beside(columns)
    if not top:
        return "\n".join(drawn) + "\n"
    left = max(0, max(map(len, drawn), default=0) - max(map(width, columns[-1:]), default=0))
    final = [" " * left + line for line in down(top, max(map(width, columns[-1:]), default=0))]
    return "\n".join(line.rstrip() for line in (*drawn, *final)) + "\n"


def width(lines: Sequence[str]) -> int:
    """Characters of the longest line."""
    return max(map(len, lines), default=0)


def beside(columns: Sequence[Sequence[str]]) -> list[str]:
    """Columns next to one another, the shorter ones standing at the top; below one another where they are too wide."""
    if sum(map(width, columns)) + BETWEEN * (len(columns) - 1) > WIDTH:
        return [line for column in columns for line in (*column, "")]
    widths = [width(column) for column in columns]
    rows = zip_longest(*columns, fillvalue="")
    return [(" " * BETWEEN).join(line.ljust(size) for line, size in zip(row, widths, strict=True)) for row in rows]


def down(lines: Iterable[str], across: int) -> list[str]:
    """Lines one below another in the middle of a column, joined by strokes."""
    return [found for line in lines for found in ("|".center(across), line.center(across))]


def stack_lines(stack: Stack, terms: Sequence[Term], text: Text) -> list[str]:
    """Ids, the first hidden state, the layers in boxes, the output; nothing where the stack rests."""
    from ..estimators.ledger import layer_names

    here = [term for term in terms if term.path.startswith(f"{stack.name}/")]
    if not here:
        return []
    names = layer_names(stack)
    boxes = []
    for layer, count in Counter(stack.layers()).items():
        path = f"{stack.name}/{names[layer]}" if names[layer] else stack.name
        title = f"{names[layer] or stack.name} x {count}"
        boxes.append(box(title, [line for sub in layer.sublayers for line in sublayer_lines(f"{path}/{sub.name}", sub, here, text)]))
    across = max(map(width, boxes), default=0)
    first = [term for term in here if term.path.startswith(f"{stack.name}/embedding/") and len(term.output) > 2]
    begin = [f"{here[0].path} {text(here[0].output)}", *(f"embedding {text(term.output)}" for term in first[-1:])]
    lines = [begin[0].center(across), *down(begin[1:], across)]
    for drawn in boxes:
        lines += ["|".center(across), *(line.center(across) for line in drawn)]
    return [*lines, *down([f"{here[-1].path} {text(here[-1].output)}"], across)]


def box(title: str, lines: Sequence[str]) -> list[str]:
    """Lines in a frame with a title."""
    across = max(width(lines), len(title) + 2)
    rule = "-" * (across + 2)
    return [f"+- {title} {rule[len(title) + 3 :]}+", *(f"| {line.ljust(across)} |" for line in lines), f"+{rule}+"]


def sublayer_lines(path: str, sub: Sublayer, terms: Sequence[Term], text: Text) -> list[str]:
    """A mixer with its scores, or the widths that a branch goes through."""
    here = [term for term in terms if term.path.startswith(f"{path}/")]
    scores = next((term for term in here if term.path == f"{path}/scores"), None)
    if scores is None:
        return [sub.name, *(f"  {step}" for chain in chains(here, text) for step in joined(chain))] if here else []
    values = next(term for term in here if term.path == f"{path}/values")
    masked = any(term.op == "mask" for term in here)
    source = getattr(sub.mixer, "source", None)
    *lead, inner, keys = scores.inputs[1]
    return [
        sub.name,
        f"  Q {text(scores.inputs[0])}",
        f"  K {text((*lead, keys, inner))}" + (f" of {source}" if source else ""),
        f"  V {text(values.inputs[1])}" + (f" of {source}" if source else ""),
        f"  {'masked scores' if masked else 'scores'} {text(scores.output)}",
        f"  weights x V {text(values.output)}",
        f"  out {text(here[-1].output)}",
    ]


def chains(terms: Sequence[Term], text: Text) -> list[list[str]]:
    """Products that read one another's output behind one another; one beside another of the same sizes (a gate) once."""
    found: list[list[Shape]] = []
    for term in terms:
        if term.op not in PRODUCTS:
            continue
        before, after = term.inputs[0], term.output
        if found and found[-1][-2:] == [before, after]:
            continue
        if found and found[-1][-1] == before:
            found[-1].append(after)
        else:
            found.append([before, after])
    return [[text(shape) for shape in chain] for chain in found]


def joined(steps: Sequence[str]) -> list[str]:
    """Steps behind one another, three on a line."""
    lines = [" -> ".join(steps[at : at + 3]) for at in range(0, len(steps), 3)]
    return [line if at == 0 else f"-> {line}" for at, line in enumerate(lines)]
