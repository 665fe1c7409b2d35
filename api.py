"""The Python API: what the commands do, as functions of a name or a `ModelSpec`.

>>> import tfm
>>> tfm.params("llama-7b").total_params
6738415616
>>> tfm.kvcache("llama-2-70b", context=4096).kv_bytes
1342177280
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from .presets.loader import load, load_model

if TYPE_CHECKING:
    from .estimators.flops import Flops
    from .estimators.kvcache import KvCache
    from .estimators.latency import Latency
    from .estimators.memory import Memory, Recipe
    from .estimators.params import Params
    from .estimators.rows import Row
    from .estimators.solve import Shape as ShapeFor
    from .estimators.tensors import Term
    from .estimators.work import Pass
    from .presets.device import Device
    from .presets.dtypes import Dtype
    from .presets.spec import ModelSpec
    from .presets.weights.stored import StoredWeights


def model(name: str | ModelSpec) -> ModelSpec:
    """The model called `name` (a preset, a path to a config.json or to weights, a Hub id), or the spec itself. Raises TfmError."""
    return load_model(name) if isinstance(name, str) else name


def device(name: str | Device) -> Device:
    """The device called `name`, or the device itself. Raises UnknownNameError."""
    from .presets.device import load_device

    return load_device(name) if isinstance(name, str) else name


def dtype(name: str) -> Dtype:
    """The number format called `name`: bf16, int4, q8_0 ... Raises UnknownNameError."""
    from .presets.dtypes import get_dtype

    return get_dtype(name)


def work(given: Pass | None, **fields: object) -> Pass:
    """A pass from fields: phase, batch, context, source, images, weight_dtype, kv_dtype, activation_dtype ...

    Formats may be names. batch, context and source may be numpy arrays of one shape: all points in one call.
    """
    from .estimators.work import Pass
    from .presets.dtypes import get_dtype

    named = {key: get_dtype(value) if key.endswith("_dtype") and isinstance(value, str) else value for key, value in fields.items()}
    return replace(given or Pass(), **named)


def weights(name: str) -> StoredWeights | None:
    """What the files of `name` (safetensors, GGUF, a folder, a Hub id) hold by their headers; None for a bare description."""
    return load(name).weights


def described(name: str | ModelSpec, given: Pass | None, fields: dict[str, object]) -> tuple[ModelSpec, Pass]:
    """A model and a pass over it; where weights are at hand and no format is said, with the bytes that they hold."""
    made = work(given, **fields)
    if not isinstance(name, str) or given is not None or "weight_dtype" in fields or "stored" in fields:
        return model(name), made
    from .estimators.stored import with_stored

    found = load(name)
    spec = found.model()
    return spec, made if found.weights is None else with_stored(made, spec, found.weights)


def ledger(name: str | ModelSpec, given: Pass | None = None, **fields: object) -> tuple[Row, ...]:
    """The rows that every figure is a sum over."""
    from .estimators.ledger import ledger as rows

    return rows(model(name), work(given, **fields))


def params(name: str | ModelSpec) -> Params:
    """Exact parameters, their breakdown, and the gap to the rule of thumb, term by term."""
    from .estimators.params import params as count

    return count(model(name))


def flops(name: str | ModelSpec, given: Pass | None = None, **fields: object) -> Flops:
    """FLOPs of a pass: `tfm.flops("llama-2-7b", context=4096)`."""
    from .estimators.flops import flops as count

    return count(model(name), work(given, **fields))


def kvcache(name: str | ModelSpec, given: Pass | None = None, **fields: object) -> KvCache:
    """Bytes of the cache under each policy."""
    from .estimators.kvcache import kvcache as count

    return count(model(name), work(given, **fields))


def memory(name: str | ModelSpec, given: Pass | None = None, recipe: Recipe | None = None, **fields: object) -> Memory:
    """What has to fit: weights, cache, activations; with phase="train" gradients and optimizer."""
    from .estimators.memory import memory as count

    return count(*described(name, given, fields), recipe)


def latency(name: str | ModelSpec, hardware: str | Device, given: Pass | None = None, **fields: object) -> Latency:
    """Roofline of prefill and of a decode step on a device."""
    from .estimators.latency import latency as count

    return count(*described(name, given, fields), device(hardware))


def shapes(name: str | ModelSpec, given: Pass | None = None, **fields: object) -> tuple[Term, ...]:
    """The shape of every tensor on its way."""
    from .estimators.shapes import shapes as walk

    return walk(model(name), work(given, **fields))


def solve(target: int) -> tuple[ShapeFor, ...]:
    """Plausible (D, L) for a number of parameters, the most usual first."""
    from .estimators.solve import solve as search

    return search(target)
