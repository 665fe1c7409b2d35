"""From a loop that is written as sums in PyTorch to one call: traced with open sizes, compiled by Inductor, tried before it is used.

`torch.compile` checks at every call all that it took for granted, and wraps what it made several times over. That is Python, and in
a model each layer's weights drive it out of the caches: 0.1 to 0.3 ms a call, a third of the products of a model of 1.5 B parameters.
Here a loop is traced once for each kind of inputs, and what Inductor makes of it is called by itself. Nothing checks the inputs then:
who asks for a kind calls it with that kind, and a loop is compared first with the same loop uncompiled, at other sizes than it was
traced with.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

REGISTERS = 32  # for sums side by side; what falls out of them is slow, and takes long to compile
OPTIONS: dict[str, Any] = {
    "cpp.enable_floating_point_contract_flag": "fast",  # multiply and add in one instruction
    "cpp.max_horizontal_fusion_size": REGISTERS,
    "cpp.vec_isa_ok": True,  # a compiler that knows the processor is believed, not tried out for seconds
    "size_asserts": False,  # of inputs at every call
    "compile_threads": 1,  # no pool of processes beside a measurement
}
NEAR = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 3e-3}  # of what a loop gives, all numbers together
FURTHEST = 10  # times that, and one of its numbers may still be rounded otherwise: what is wrong is so by more

Loop = Callable[..., tuple[Tensor, ...]]
Compiled = Callable[[list[Tensor]], Sequence[Tensor]]  # the same, its inputs in a list that it empties
Example = tuple[Tensor, tuple[int, ...]]  # an input, and which of its dimensions may have other sizes
_broken: list[str] = []  # why compiling failed, once it did


class LoopError(RuntimeError):
    """A compiled loop gives something else than the same loop uncompiled."""


def gap() -> str | None:
    """Why nothing can be compiled here; None where, as far as one can see, it can."""
    return _broken[0] if _broken else None if compiler() else "no C++ compiler"


@cache
def compiler() -> str | None:
    """Path of the C++ compiler that PyTorch takes on a processor."""
    return shutil.which(os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++"))


def works(call: Callable[[], object]) -> bool:
    """Compile by calling; False, and for the rest of the process, where that fails."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever a compiler, its absence or a version of PyTorch may raise
        first, *_ = [*str(error).strip().splitlines(), type(error).__name__]
        _broken.append(f"compiling failed: {first}")
    return not _broken


def compile_loop(loop: Loop, examples: Sequence[Example], trials: Sequence[Sequence[Tensor]]) -> Compiled:
    """One call for all inputs that are like the examples but for their open sizes; strides of tensors in larger ones are open as well.

    Sizes in examples say what is usual: threads share the work as suits those. An open size of 1 holds for 1 alone, another for all
    from 2 on. trials: inputs of other sizes, over which it is compared with the loop. Raises LoopError, and what compilers raise.
    """
    with torch.inference_mode(mode=False), torch.no_grad(), _disable_current_modes(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch about itself, as it loads the compiler
        made = traced_and_compiled(loop, examples)
        for inputs in trials:
            compare(loop, made, [x.clone() for x in inputs])  # no tensors of inference mode: a loop may change its inputs
    return made


def traced_and_compiled(loop: Loop, examples: Sequence[Example]) -> Compiled:
    """The loop by Inductor, untried."""
    from torch._dynamo.source import ConstantSource
    from torch._guards import TracingContext, tracing
    from torch._inductor import config, list_options
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    mode = FakeTensorMode(shape_env=ShapeEnv(duck_shape=False))  # sizes that are equal in an example are still two
    inputs = []
    for index, (x, opened) in enumerate(examples):
        sizes = [DimDynamic.DYNAMIC if dim in opened else DimDynamic.STATIC for dim in range(x.dim())]
        symbols: Any = StatelessSymbolicContext(dynamic_sizes=sizes)
        inputs.append(mode.from_tensor(x, symbolic_context=symbols, source=ConstantSource(f"input {index}")))
    known = set(list_options())
    # In a context of its own Inductor keeps what it made on disk: it refuses where it cannot tell which sizes are open.
    with config.patch({name: value for name, value in OPTIONS.items() if name in known}), tracing(TracingContext(mode)):
        graph = make_fx(loop, decomposition_table=select_decomp_table())(*inputs)
        run: Any = compile_fx_inner(graph, inputs)
    return getattr(run, "current_callable", run)  # type: ignore[no-any-return]  # without what PyTorch's profiler wants to know


def realized(x: Tensor) -> Tensor:
    """x, within a loop, as numbers in memory: what reads it many times does not compute it each time. In its own format, not in fp32."""
    from torch._inductor import test_operators  # noqa: F401 - brings the operator

    return torch.ops._inductor_test.realize(x)  # type: ignore[no-any-return]


def compare(loop: Loop, made: Compiled, inputs: Sequence[Tensor]) -> None:
    """Raise LoopError where a compiled loop does not give what the loop gives."""
    for got, want in zip(made(list(inputs)), loop(*inputs), strict=True):
        if got.shape != want.shape or not is_near(got.float(), want.float(), NEAR[want.dtype]):
            sizes = ", ".join(str(tuple(x.shape)) for x in inputs)
            raise LoopError(f"{loop.__name__} compiled differs from itself at {sizes}")


def is_near(got: Tensor, want: Tensor, near: float) -> bool:
    """Whether the difference is so small a part of what is wanted, and no number's one of many times that of the typical number."""
    off, typical = (got - want).abs(), want.square().mean().sqrt()
    return bool((off.square().mean().sqrt() <= near * typical) & (off.max() <= FURTHEST * near * typical))
