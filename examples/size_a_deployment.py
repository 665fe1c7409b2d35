"""Which of three devices holds a model at 32k, for how many users, and how fast can it answer at best?

python examples/size_a_deployment.py
"""

from __future__ import annotations

import tfm
from tfm.estimators.memory import fit

MODEL, CONTEXT = "llama-3-70b", 32768


def main() -> None:
    """Print a line a device and format."""
    spec = tfm.model(MODEL)
    for name in ("rtx-4090", "h100-80gb-sxm", "h200-141gb-sxm"):
        device = tfm.device(name)
        for dtype in ("bf16", "int4"):
            work = tfm.Pass(phase="decode", context=CONTEXT, weight_dtype=tfm.dtype(dtype))
            found = fit(spec, work, device.capacity_bytes)
            step = tfm.latency(spec, device, work).decode
            assert step is not None and step.floor_s is not None
            said = (
                f"{found.largest_batch} users at {CONTEXT} tokens, at best {1 / step.floor_s:.0f} tokens/s each"
                if found.fits
                else "does not fit"
            )
            print(f"{MODEL} in {dtype:5} on {device.title:32} {said}")


if __name__ == "__main__":
    main()
