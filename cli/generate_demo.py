"""`tfm generate-demo`: a tiny trained model answers, token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..presets.errors import UsageError
from . import options as o

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..kernels.generation.demo import Shown, Way
    from ..kernels.model import Model
    from ..kernels.training.tasks import Example, Task
    from ..presets.spec import ModelSpec
    from .output import Answer

From = Annotated[str | None, typer.Option("--from", help="A model that `tfm train-demo --save FILE` wrote; else a few steps of training.")]
Prompt = Annotated[
    str | None, typer.Option("--prompt", help="`copy` or `reverse` and letters, as in 'reverse abcd'; else an unseen string.")
]
Strategy = Annotated[Literal["greedy", "sample", "beam"], typer.Option("--strategy", help="How the next token is found.")]
Temperature = Annotated[float | None, typer.Option("--temperature", help="Of --strategy sample: 1 if not given, 0 is greedy.")]
TopK = Annotated[int | None, typer.Option("--top-k", help="Of --strategy sample: the so many most likely tokens.")]
TopP = Annotated[float | None, typer.Option("--top-p", help="Of --strategy sample: the smallest set that has this mass.")]
Beams = Annotated[int | None, typer.Option("--beams", min=1, max=256, help="Of --strategy beam: hypotheses kept, 4 if not given.")]
LengthPenalty = Annotated[float | None, typer.Option("--length-penalty", help="Of --strategy beam: above 0 favours long answers.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**31 - 1, help="Of what is drawn: training, the unseen string, the tokens.")]
Threads = Annotated[int, typer.Option("--threads", min=1, max=1024, help="Threads of PyTorch's operators: tensors this small want one.")]
Steps = Annotated[
    int | None, typer.Option("--steps", min=1, max=10_000, help="Steps of training where no model is given; 400 if not said.")
]


def generate_demo(
    saved: From = None,
    prompt: Prompt = None,
    strategy: Strategy = "greedy",
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    beams: Beams = None,
    length_penalty: LengthPenalty = None,
    seed: Seed = 0,
    steps: Steps = None,
    threads: Threads = 1,
    as_json: o.Json = False,
    as_csv: o.Csv = False,
    as_markdown: o.Markdown = False,
) -> None:
    """Copy or reverse a string with a tiny trained model: per token its cache, the step's time, and the floor of its bytes.

    \b
    Examples:
      tfm generate-demo --prompt 'reverse abcd' --steps 20
      tfm generate-demo --strategy beam --beams 3 --steps 20 --json
      tfm generate-demo --strategy sample --temperature 0.8 --top-p 0.9 --seed 7 --steps 20
    """
    from .measuring import Progress, need_torch
    from .output import emit, one_format

    one_format(as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)
    need_torch()
    from ..kernels.benchmarks.setting import use_threads
    from ..kernels.generation.demo import demonstrate, example_of, trained
    from ..kernels.training.tasks import unseen_examples

    if steps is not None and saved is not None:
        raise UsageError("--steps trains a model where --from gives none; give one of them")
    steps = 400 if steps is None else steps
    way = way_of(strategy, temperature, top_k, top_p, beams, length_penalty, seed)
    use_threads(threads)
    progress = Progress()
    spec, model, task = trained(steps, seed, progress) if saved is None else loaded(saved)
    example = unseen_examples(task, 1, seed=seed)[0] if prompt is None else example_of(prompt, task)
    progress("generating, and measuring the bandwidth of this run")
    shown = demonstrate(model, example, way)
    progress.done()
    inputs: dict[str, object] = {"from": saved, "steps": None if saved else steps, "strategy": strategy, "seed": seed, "model": spec.name}
    emit(answer(spec, task, example, shown, inputs), as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="generate-demo")(generate_demo)


def loaded(path: str) -> tuple[ModelSpec, Model, Task]:
    """What a file of `tfm train-demo --save` holds."""
    from ..kernels.saved import load_saved
    from ..kernels.training.tasks import task_of
    from ..presets.loader import at_home

    spec, model, extra = load_saved(at_home(path))
    return spec, model, task_of(extra)


def way_of(
    strategy: str, temperature: float | None, top_k: int | None, top_p: float | None, beams: int | None, penalty: float | None, seed: int
) -> Way:
    """The strategy; raises UsageError for options of another one."""
    from ..kernels.generation.demo import Way
    from ..kernels.generation.sampling import GREEDY, Sampler

    belongs = {
        "sample": {"--temperature": temperature, "--top-k": top_k, "--top-p": top_p},
        "beam": {"--beams": beams, "--length-penalty": penalty},
    }
    for owner, given in belongs.items():
        for name, value in given.items():
            if value is not None and owner != strategy:
                raise UsageError(f"{name} belongs to --strategy {owner}, got --strategy {strategy}")
    if strategy == "sample":
        return Way(sampler=Sampler(temperature=1.0 if temperature is None else temperature, top_k=top_k, top_p=top_p), seed=seed)
    return Way(sampler=GREEDY, beams=(beams or 4) if strategy == "beam" else None, length_penalty=penalty or 0.0, seed=seed)


def answer(spec: ModelSpec, task: Task, example: Example, shown: Shown, inputs: dict[str, object]) -> Answer:
    """The answer in words, a row a token."""
    from .output import Answer
    from .quantities import Kind, Quantity, format_quantity
    from .tables import Column, Table

    rows = [
        {
            "step": place + 1, "token": task.vocabulary[line.token], "token_id": line.token, "read": line.read,
            "cache_length": line.cache_length, "cache_bytes": line.cache_bytes, "seconds": line.seconds, "floor_s": line.floor_s,
        }
        for place, line in enumerate(shown.lines)
    ]  # fmt: skip
    columns = (
        Column("token", Kind.TEXT), Column("read", Kind.EXACT, "tokens read"), Column("cache_length", Kind.EXACT, "in the cache"),
        Column("cache_bytes", Kind.BYTES, "cache"), Column("seconds", Kind.SECONDS, "step"), Column("floor_s", Kind.SECONDS, "floor"),
    )  # fmt: skip
    order = task.vocabulary[example.order].strip("<>")
    verdict = "right" if shown.right else f"wrong, {task.text(example.answer)} was asked for"
    title = f"{order} {task.text(example.letters)} -> {task.text(shown.said)} ({verdict}); log P {shown.log_prob:.3g}"
    found = {
        "prompt": f"{order} {task.text(example.letters)}", "output": task.text(shown.said), "expected": task.text(example.answer),
        "correct": shown.right, "log_prob": shown.log_prob, "new_tokens": len(shown.lines),
        "step_s": shown.step_s, "floor_s": shown.floor_s, "operators_per_step": shown.operators, "launch_s": shown.launch_s,
        "bandwidth_bytes_per_s": shown.bandwidth.bytes_per_s, "bandwidth_probe": shown.bandwidth.winner.name,
    }  # fmt: skip
    rate = format_quantity(Quantity(shown.bandwidth.bytes_per_s, Kind.BYTES_PER_S))
    return Answer(
        command="generate-demo",
        inputs=inputs,
        assumptions=(
            *(() if inputs["from"] else (f"no --from: {spec.name}, trained just now for {inputs['steps']} steps; it may err",)),
            *(("longer than any string it was trained on",) if len(example.letters) > task.longest else ()),
            f"floor: weights and cache of the step, each byte once, at {rate} ({shown.bandwidth.winner.name}, measured in this run)",
            *verdicts(shown),
        ),
        result={**found, "rows": rows},
        tables=(Table(title, columns, tuple(rows)),),
    )


def verdicts(shown: Shown) -> Iterator[str]:
    """What the steps wait for, from the numbers."""
    from .quantities import Kind, Quantity, format_quantity

    step, floor, launch, each = (
        format_quantity(Quantity(value, Kind.SECONDS))
        for value in (shown.step_s, shown.floor_s, shown.launch_s, shown.step_s / shown.operators)
    )
    times = shown.step_s / shown.floor_s
    yield f"a decode step takes {step}, {times:.3g} times its floor of {floor}: {shown.operators} operators of {each} each"
    if shown.operators * shown.launch_s > shown.floor_s:
        yield (
            f"launching an operator on a single number takes {launch}, so {shown.operators} of them alone take more than the bytes: "
            "at this size a step waits for the host, not for memory"
        )
