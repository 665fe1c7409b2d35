"""`tfm show`: a model or device as it is understood, with its sources."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

import typer

from . import options as o

if TYPE_CHECKING:
    from ..presets.device import Device
    from ..presets.spec import ModelSpec
    from .output import Answer


def complete_any(incomplete: str) -> list[str]:
    """Shell completion of models and devices."""
    return o.complete_model(incomplete) + o.complete_device(incomplete)


Named = Annotated[str, typer.Argument(metavar="NAME", help="A model, a config.json or a device.", autocompletion=complete_any)]
AsYaml = Annotated[bool, typer.Option("--yaml", help="Print the model as a preset of your own.")]


def show(
    name: Named,
    presets: o.Presets = None,
    lenient: o.Lenient = False,
    as_yaml: AsYaml = False,
    as_json: o.Json = False,
    as_csv: o.Csv = False,
    as_markdown: o.Markdown = False,
) -> None:
    """How a model or device is understood: layers, windows, experts, what is shared; sources.

    \b
    Examples:
      tfm show gemma-2-27b
      tfm show a100-80gb-sxm
      tfm show llama-7b --yaml
    """
    from ..presets.device import device_aliases, device_names
    from ..presets.errors import UsageError
    from .output import emit, one_format, write

    one_format(as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)
    if name in device_names() or name in device_aliases():
        from ..presets.device import load_device

        if as_yaml:
            raise UsageError(f"--yaml writes models; {name!r} is a device")
        answer = device_answer(load_device(name))
    else:
        spec = named_model(name, presets, lenient=lenient)
        if as_yaml:
            from ..presets.dump import model_to_yaml

            write(model_to_yaml(spec), end="")
            return
        answer = model_answer(spec)
    emit(answer, as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(show)


def named_model(name: str, presets: str | None, *, lenient: bool) -> ModelSpec:
    """The model called `name`; an unknown name is looked for among the devices too."""
    from ..presets.device import device_names
    from ..presets.errors import UnknownNameError
    from ..presets.loader import given_folders, load_model, model_names

    folders = given_folders(presets)
    try:
        return load_model(name, folders, lenient=lenient)
    except UnknownNameError as error:
        if error.close:
            raise
        known = (*model_names(folders), *device_names())
        raise UnknownNameError("model or device", name[:80], known, "`tfm models` and `tfm hardware` list them.") from error


def model_answer(spec: ModelSpec) -> Answer:
    """Stacks, layers, what stands on top, sources."""
    from ..estimators.params import params
    from ..presets.describe import describe_layers, describe_parts
    from .output import Answer
    from .quantities import Kind, Quantity
    from .tables import Column, Table, card

    count = params(spec)
    facts = [("parameters", Quantity(count.total_params, Kind.COUNT))]
    facts += [("active", Quantity(count.active_params, Kind.COUNT))] * (count.active_params != count.total_params)
    for stack in spec.stacks:
        said = f"{stack.role} of {stack.depth} layers, d_model {stack.d_model}, over {stack.tokens} tokens"
        facts.append((stack.name, Quantity(said, Kind.TEXT)))
    layers: list[tuple[str, ...]] = [line for stack in spec.stacks for line in describe_layers(stack)]
    parts = list(describe_parts(spec))
    columns = (Column("stack", Kind.TEXT), Column("layers", Kind.TEXT), Column("sublayer", Kind.TEXT), Column("what", Kind.TEXT))
    tables = (
        card(spec.title or spec.name, facts),
        Table("Layers", columns, tuple(without_repeats(layers))),
        Table("Beside the layers", (Column("where", Kind.TEXT), Column("what", Kind.TEXT)), tuple(parts)),
        Table("Sources", (Column("source", Kind.TEXT),), tuple((line,) for line in spec.source)),
    )
    result: dict[str, object] = {
        "name": spec.name,
        "title": spec.title,
        "total_params": count.total_params,
        "active_params": count.active_params,
        "layers": [dict(zip(("stack", "layers", "sublayer", "what"), line, strict=True)) for line in layers],
        "parts": [dict(zip(("where", "what"), line, strict=True)) for line in parts],
        "source": list(spec.source),
        "license": spec.license,
    }
    return Answer(command="show", inputs={"name": spec.name}, assumptions=spec.assumptions, result=result, tables=tables)


def without_repeats(layers: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The lines with what stands in the line above left blank."""
    shown = [layers[0]] if layers else []
    for above, line in pairwise(layers):
        shown.append(("", "", *line[2:]) if line[:2] == above[:2] else line)
    return shown


def device_answer(device: Device) -> Answer:
    """Every figure of a datasheet with its source."""
    import msgspec

    from .output import Answer
    from .quantities import Kind, Quantity
    from .tables import Column, Table, card

    facts = [
        ("capacity", Quantity(device.capacity_bytes, Kind.BYTES)),
        ("memory bandwidth", Quantity(device.memory_bytes_per_s, Kind.BYTES_PER_S)),
        *((f"peak {dtype}", Quantity(rate, Kind.FLOPS_PER_S)) for dtype, rate in device.peak_flops_per_s.items()),
        ("links, both directions", Quantity(device.link_bytes_per_s, Kind.BYTES_PER_S)),
        ("last-level cache", Quantity(device.cache_bytes, Kind.BYTES)),
        ("power (W)", Quantity(device.tdp_w, Kind.NUMBER)),
        ("retrieved", Quantity(device.retrieved, Kind.TEXT)),
    ]
    sources = Table("Sources", (Column("source", Kind.TEXT),), tuple((line,) for line in device.source))
    notes = (device.notes,) if device.notes else ()
    result = msgspec.to_builtins(device)
    return Answer(
        command="show", inputs={"name": device.name}, assumptions=notes, result=result, tables=(card(device.title, facts), sources)
    )
