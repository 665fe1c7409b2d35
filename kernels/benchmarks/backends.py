"""What really ran: the products and the attention kernel that PyTorch dispatched."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .. import compiled
from ..attention import FUSED
from ..timing import Call

PRODUCTS = (
    "mv", "addmv", "mm", "addmm", "linear", "bmm", "baddbmm", "_linear_pointwise", "_weight_int8pack_mm", "_weight_int4pack_mm_for_cpu",
)  # fmt: skip


class Operators(TorchDispatchMode):
    """Counts the operators that reach PyTorch's dispatcher."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count, then run as usual."""
        self.seen[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def backend_of(call: Call) -> str:
    """Run a call once and say what it dispatched, as "mv, attention: flash (cpu)"; what has a softmax of its own is `math`."""
    # Not in inference mode, where composite operators reach the dispatcher whole and hide what they run.
    with torch.inference_mode(mode=False), torch.no_grad(), compiled.LOOPS.listening() as loops, Operators() as operators:
        call()
    products = [*(["compiled loops"] if "product" in loops else []), *(name for name in PRODUCTS if operators.seen[name])]
    fused = [*(["compiled loops"] if "attention" in loops else []), *(label for name, label in FUSED.items() if operators.seen[name])]
    if operators.seen["_softmax"] or operators.seen["softmax"]:
        fused.append("math")
    return ", ".join([*products, *([f"attention: {' and '.join(fused)}"] if fused else [])])
