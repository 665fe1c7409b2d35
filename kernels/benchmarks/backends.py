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
    """Run a call and say what it dispatched, as "mv, attention: flash (cpu)"; what has a softmax of its own is `math`."""
    with torch.inference_mode(), compiled.LOOPS.listening() as loops:
        call()
    # Not in inference mode, where composite operators reach the dispatcher whole and hide what they run; nor do compiled loops run then.
    with torch.no_grad(), Operators() as operators:
        call()
    seen = operators.seen
    in_loops = {kind: len(told) for kind, told in loops.items()}
    if in_loops.get("product", 0) >= seen["mv"] + seen["addmv"]:
        seen["mv"] = seen["addmv"] = 0
    fused = {label: seen[name] for name, label in FUSED.items() if seen[name]}
    if seen["_softmax"] or seen["softmax"]:
        fused["math"] = seen["_softmax"] + seen["softmax"]
    if in_loops.get("attention", 0) >= sum(fused.values()):
        fused = {}
    products = [*(["compiled loops"] if "product" in in_loops else []), *(name for name in PRODUCTS if seen[name])]
    attention = [*(["compiled loops"] if "attention" in in_loops else []), *fused]
    return ", ".join([*products, *([f"attention: {' and '.join(attention)}"] if attention else [])])
