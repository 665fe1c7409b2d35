"""Sublayers as one compiled call: they give what their modules give, keep what those keep, and stand back where they are not for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from tfm.kernels import compiling, fused, grouped, panels
from tfm.kernels.blocks import Sublayer
from tfm.kernels.cache import Cache
from tfm.kernels.compiled import LOOPS
from tfm.kernels.fused import Fused, FusedAttention, fuse, unfuse
from tfm.kernels.mixers import Run
from tfm.kernels.model import Model, build_model
from tfm.kernels.orders import ORDERS
from tfm.kernels.plan import gpt_like, llama_like
from tfm.kernels.stored import lay_back, reorder, taking_the_same
from tfm.presets import spec as s

pytestmark = pytest.mark.skipif(compiling.compiler() is None, reason="no C++ compiler")

LLAMA = llama_like("llama", layers=2, width=64, heads=8, kv_heads=4, head_dim=32, d_ff=96, vocabulary=80)
GPT = gpt_like("gpt", layers=2, width=256, heads=8, vocabulary=80)
CONTEXT, STEPS = 70, 3


class Always(dict):  # type: ignore[type-arg]
    """Loops were found the faster way, whatever is asked."""

    def get(self, *_: object) -> bool:
        return True


@pytest.fixture(autouse=True)
def loops_for_small_ones(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(compiling, "_broken", [])
    monkeypatch.setattr(panels, "WORTH", 1)
    monkeypatch.setattr(grouped, "CHOSEN", Always())
    threads = torch.get_num_threads()
    torch.set_num_threads(2)  # more of them would share out heads
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Fused]:
    """Which fused sublayers run meanwhile."""
    found: list[Fused] = []
    plain = Fused.__call__

    def noted(self: Fused, *args: Any) -> Tensor:
        found.append(self)
        return plain(self, *args)

    monkeypatch.setattr(Fused, "__call__", noted)
    return found


def changed(spec: s.ModelSpec, attention: dict[str, Any] | None = None, forward: dict[str, Any] | None = None, **both: Any) -> s.ModelSpec:
    """A model whose mixers, or all of its sublayers, have other fields."""
    (block,) = spec.main.blocks
    one, other = block.pattern[0].sublayers
    subs = (
        msgspec.structs.replace(one, mixer=msgspec.structs.replace(one.mixer, **(attention or {})), **both),
        msgspec.structs.replace(other, mixer=msgspec.structs.replace(other.mixer, **(forward or {})), **both),
    )
    layer = msgspec.structs.replace(block.pattern[0], sublayers=subs)
    stack = msgspec.structs.replace(spec.main, blocks=(msgspec.structs.replace(block, pattern=(layer,)),))
    return msgspec.structs.replace(spec, stacks=(stack,))


GEMMA = changed(
    LLAMA,
    {"softcap": 20.0, "mask": s.Sliding(window=CONTEXT + 1), "scale": 0.2},
    {"activation": "gelu_tanh"},
    pre_norm=s.Norm(type="rms", unit_offset=True),
    output_norm=s.Norm(type="rms", name="post_norm", unit_offset=True),
)
POST = changed(GPT, None, {"activation": "relu"}, pre_norm=None, residual_norm=s.Norm(type="layer_unbiased"), residual_scale=0.5)
QWEN = changed(LLAMA, {"head_norm": s.HeadNorm(), "bias": ("q", "k", "v")}, {"inner_norm": s.Norm(type="rms")})
ALL: dict[str, s.ModelSpec] = {"llama": LLAMA, "gpt": GPT, "gemma": GEMMA, "post": POST, "qwen": QWEN}


@torch.inference_mode()
def stored(spec: s.ModelSpec, dtype: torch.dtype, rows: int) -> Model:
    """A model in panels."""
    model = build_model(spec, dtype=dtype)
    with taking_the_same(model) as groups:
        model(torch.zeros(1, 2, dtype=torch.long))
    for group in groups:
        reorder(group, ORDERS["panels"], rows)
    return model


def sublayers(model: Model) -> Iterator[Sublayer]:
    return (module for module in model.modules() if isinstance(module, Sublayer))


def steps(model: Model, cache: Cache, ids: Tensor) -> list[Tensor]:
    """Logits of one token after another."""
    return [model(column.unsqueeze(1), cache=cache)["lm_head"] for column in ids.unbind(1)]


@pytest.mark.parametrize(
    ("name", "dtype", "rows"),
    [*((name, torch.float32, 1) for name in ALL), ("llama", torch.bfloat16, 3), ("gpt", torch.float16, 2), ("gemma", torch.float32, 2)],
)
@torch.inference_mode()
def test_a_fused_model(name: str, dtype: torch.dtype, rows: int, taken: list[Fused]) -> None:
    model = stored(ALL[name], dtype, rows)
    plain = model.cache(rows, CONTEXT + STEPS)
    model(torch.randint(80, (rows, CONTEXT)), cache=plain)
    as_one, ids = plain.copied(), torch.randint(80, (rows, STEPS))
    want = steps(model, plain, ids)
    assert not taken
    fuse(model, rows)
    got = steps(model, as_one, ids)
    assert compiling.gap() is None and len(taken) == STEPS * len(list(sublayers(model)))
    near = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 3e-2}[dtype]
    assert all((one - other).norm() < near * other.norm() for one, other in zip(got, want, strict=True))
    for one, other in zip(as_one.rings(), plain.rings(), strict=True):  # what is kept, and only where it belongs
        assert (one.buffer - other.buffer).norm() <= near * other.buffer.norm()


@pytest.mark.parametrize("activation", ["silu", "gelu", "quick_gelu", "relu2", "clamped_swiglu"])
@torch.inference_mode()
def test_activations(activation: str, taken: list[Fused]) -> None:
    spec = changed(LLAMA, {"head_norm": s.HeadNorm(over="all")}, {"activation": activation})  # its attention is not fused
    model, ids = stored(spec, torch.float32, 1), torch.tensor([[7]])
    want = model(ids)["lm_head"]
    fuse(model, 1)
    assert (model(ids)["lm_head"] - want).norm() < 1e-5 * want.norm()
    assert len(taken) == 2 and compiling.gap() is None


@pytest.mark.parametrize("why", ["gradients", "someone listens", "other rows", "a short context", "another kernel", "a loop is slower"])
@torch.inference_mode()
def test_they_stand_back(why: str, taken: list[Fused], monkeypatch: pytest.MonkeyPatch) -> None:
    model = stored(LLAMA, torch.float32, 1)
    fuse(model, 1)
    rows = 2 if why == "other rows" else 1
    cache = model.cache(rows, 99)
    cache.randomise(40 if why == "a short context" else CONTEXT)

    def noted(self: Fused, x: Tensor, *_: Any) -> Tensor:
        taken.append(self)
        return x

    monkeypatch.setattr(Fused, "__call__", noted)
    ids, how = torch.zeros(rows, 1, dtype=torch.long), {"kernel": "eager"} if why == "another kernel" else {}
    if why == "gradients":
        with torch.inference_mode(mode=False), torch.no_grad():
            model(ids, cache=model.cache(1, 99))
    elif why == "someone listens":
        with LOOPS.listening():
            model(ids, cache=cache)
    else:
        if why == "a loop is slower":
            monkeypatch.setattr(grouped, "CHOSEN", {})
        model(ids, cache=cache, **how)
    forward_too = why in ("gradients", "someone listens", "other rows")
    assert not any(isinstance(one, FusedAttention) for one in taken) and bool(taken) is not forward_too


CHANGES: dict[str, Callable[[], s.ModelSpec]] = {
    "gate": lambda: changed(LLAMA, {"gate": "full"}),
    "partial rotation": lambda: changed(LLAMA, {"position": s.Rope(dims=16)}),
    "interleaved": lambda: changed(LLAMA, {"position": s.Rope(interleaved=True)}),
    "distances": lambda: changed(LLAMA, {"position": s.Alibi()}),
    "sinks": lambda: changed(LLAMA, {"sinks": True}),
    "values of another width": lambda: changed(LLAMA, {"value_dim": 64}),
    "norm of all heads": lambda: changed(LLAMA, {"head_norm": s.HeadNorm(over="all")}),
    "one KV head": lambda: changed(LLAMA, {"kv_heads": 1}),
}


@pytest.mark.parametrize("what", CHANGES)
def test_attention_of_another_kind_is_not_fused(what: str) -> None:
    model = stored(CHANGES[what](), torch.float32, 1)
    fuse(model, 1)
    assert [type(sub.fused) for sub in sublayers(model)] == 2 * [type(None), Fused]


@pytest.mark.parametrize("what", ["not stored", "for other rows", "in another order", "parallel", "laid back"])
@torch.inference_mode()
def test_what_is_not_fused(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = LLAMA
    if what == "parallel":
        (block,) = spec.main.blocks
        layer = msgspec.structs.replace(block.pattern[0], parallel=True)
        blocks = (msgspec.structs.replace(block, pattern=(layer,)),)
        spec = msgspec.structs.replace(spec, stacks=(msgspec.structs.replace(spec.main, blocks=blocks),))
    model = build_model(spec) if what == "not stored" else stored(spec, torch.float32, 2 if what == "for other rows" else 1)
    if what == "in another order":
        monkeypatch.setattr(fused, "ORDERS", {"panels": object()})
    fuse(model, 1)
    if what == "laid back":
        assert all(sub.fused is not None for sub in sublayers(model))
        unfuse(model)
        lay_back(model, 0)
    assert all(sub.fused is None for sub in sublayers(model))


def test_nothing_of_a_model_that_reads_earlier_keys() -> None:
    spec = changed(LLAMA, {"keys": "reused"})
    first = LLAMA.main.blocks[0]
    (block,) = spec.main.blocks
    blocks = (msgspec.structs.replace(first, repeat=1), msgspec.structs.replace(block, repeat=1))
    model = stored(msgspec.structs.replace(spec, stacks=(msgspec.structs.replace(spec.main, blocks=blocks),)), torch.float32, 1)
    fuse(model, 1)
    assert [type(sub.fused) for sub in sublayers(model)] == 2 * [type(None), Fused]


def test_a_pass_asks_for_lengths_once() -> None:
    run = Run(start=80, tokens=1, device=torch.device("cpu"), dtype=torch.float32)
    model = build_model(GEMMA)
    cache = model.cache(1, 99)
    made = FusedAttention(rows=1, dtype=torch.float32, steps=(), held=(), spec=GEMMA.main.blocks[0].pattern[0].sublayers[0].mixer)  # type: ignore[arg-type]
    first, second = (made.live(run, layer[0]) for layer in cache.entries["decoder"])
    assert first[2] is second[2] and first[4] is second[4]
    assert (first[2].shape[0], first[3].shape[0]) == (80 % (CONTEXT + 1) + 1, CONTEXT + 1)  # a ring: its place, and all of it
