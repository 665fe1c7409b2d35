"""The formulas in words: what `--explain` prints beside every figure, each with its source."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ..estimators.rows import Row
from .output import Explanation
from .quantities import Quantity


class Formula(msgspec.Struct, frozen=True, kw_only=True):
    """A formula in symbols, its source and what it leaves out."""

    title: str
    formula: str
    source: str
    not_counted: tuple[str, ...] = ()


KAPLAN = "Kaplan et al. 2020, arXiv:2001.08361, section 2.1 and table 1"
ROOFLINE = "Williams, Waterman & Patterson 2009, doi:10.1145/1498765.1498785"
FORMULAS = {
    "total_params": Formula(
        title="Parameters",
        formula="sum over the ledger's rows of params · copies; a matrix has k·n, with bias k·n + n",
        source="the model's own description",
        not_counted=("buffers (rotary tables, running statistics, router correction biases)",),
    ),
    "rule_of_thumb": Formula(
        title="Rule of thumb",
        formula="12·D²·L + V·D",
        source=KAPLAN,
        not_counted=("norms, biases, gate matrices, an untied output matrix",),
    ),
    "linear_flops": Formula(
        title="Linear layers",
        formula="sum of 2·m·k·n · repeat, m = B·T new tokens",
        source=KAPLAN,
        not_counted=("norms, activations, additions, rotary positions: under 1 % at usual widths",),
    ),
    "attention_flops": Formula(
        title="Attention",
        formula="sum of 2·B·N·pairs·(H + Hv) · repeat; causal pairs = T·S - T(T-1)/2, a window W leaves min(W, .) a query",
        source="Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1, pairs counted exactly",
        not_counted=("softmax: about 5 operations a score",),
    ),
    "head_flops": Formula(title="Output head", formula="2·m·D·V, whether tied or not", source=KAPLAN),
    "train_flops": Formula(
        title="Training",
        formula="forward · 3: a product for the input's gradient and one for the weight's (2 where the input needs none)",
        source=KAPLAN,
    ),
    "rule_flops": Formula(
        title="Rule of thumb",
        formula="2·P a token, 6·P in training; P the active parameters",
        source=KAPLAN,
        not_counted=("attention over the context",),
    ),
    "kv_bytes": Formula(
        title="Self-attention cache",
        formula="sum over layers of B · tokens kept · K·(H + Hv) · bytes an element",
        source="Shazeer 2019, arXiv:1911.02150; Ainslie et al. 2023, arXiv:2305.13245 (groups); arXiv:2405.04434 (latent)",
    ),
    "cross_kv_bytes": Formula(
        title="Cross-attention cache",
        formula="sum over layers of B · source tokens · K·(H + Hv) · bytes an element",
        source="Vaswani et al. 2017, section 3.2.3",
    ),
    "state_bytes": Formula(
        title="Recurrent state",
        formula="sum over layers of B · (state elements · 4 + convolution tail · bytes an element)",
        source="Gu & Dao 2023, arXiv:2312.00752",
    ),
    "weight_bytes": Formula(title="Weights", formula="P · bytes a block / elements a block", source="the format's definition"),
    "activation_bytes": Formula(
        title="Activations",
        formula="residual stream B·T·D + the widest operator's input and output",
        source="counted row by row",
        not_counted=("workspace of kernels, allocator's fragments, the framework's context (0.3 to 1 GiB on CUDA)",),
    ),
    "saved_bytes": Formula(
        title="Activations kept for the backward pass",
        formula="sum over rows of their inputs; a GPT block: s·b·h·(34 + 5·a·s/h) with dropout",
        source="Korthikanti et al. 2022, arXiv:2205.05198, section 4",
        not_counted=("statistics of norms, ids, masks, rotary tables: under 1 % of a model as wide as gpt-2 (docs/training.md)",),
    ),
    "gradient_bytes": Formula(title="Gradients", formula="P · bytes an element", source="one value a parameter"),
    "optimizer_bytes": Formula(
        title="Optimizer",
        formula="P · (moments + fp32 master copy)",
        source="Kingma & Ba 2014, arXiv:1412.6980; Micikevicius et al. 2017, arXiv:1710.03740",
    ),
    "floor_s": Formula(
        title="Floor",
        formula="sum over operators of max(FLOPs / peak, (weights + cache) bytes / bandwidth)",
        source=ROOFLINE,
        not_counted=("activations, kernel launches, communication; nothing reaches the datasheet's rates",),
    ),
    "bound_s": Formula(title="Bound", formula="max(all FLOPs / peak, all compulsory bytes / bandwidth)", source=ROOFLINE),
    "control_hz": Formula(
        title="Control rate",
        formula="1 / (floor of towers and projector + floor of the prompt + floors of the decode steps)",
        source=f"{ROOFLINE}, over the passes of Kim et al. 2024, arXiv:2406.09246, section 3.2",
        not_counted=("camera, preprocessing, network, the robot's own loop; launches, which weigh most of all here",),
    ),
    "actions_per_s": Formula(
        title="Actions a second",
        formula="actions of a look / seconds of a look",
        source="Zhao et al. 2023, arXiv:2304.13705, section IV.A (chunks); Kim et al. 2025, arXiv:2502.19645, section IV (in parallel)",
    ),
    "tokens_per_round": Formula(
        title="Tokens of a round",
        formula="(1 - a^(g+1)) / (1 - a), a the chance that a proposal is kept, g proposals",
        source="Leviathan et al. 2023, arXiv:2211.17192, equation 1",
        not_counted=("that chances differ from place to place and hang together",),
    ),
    "speed_up": Formula(
        title="Speed-up",
        formula="tokens of a round · the target's step / (g steps of the draft + the target's pass over g + 1 tokens)",
        source="Leviathan et al. 2023, section 3.3, each pass by its own roofline",
        not_counted=("reading the last proposal into the draft's cache after a round without a refusal; sampling",),
    ),
    "equal_cost_speed_up": Formula(
        title="Speed-up where a check costs a step",
        formula="(1 - a^(g+1)) / ((1 - a)·(g·c + 1))",
        source="Leviathan et al. 2023, theorem 3.8",
    ),
    "distinct_experts": Formula(
        title="Distinct experts read", formula="E·(1 - (1 - k/E)^(B·T)) a layer", source="each token chooses k of E evenly and on its own"
    ),
}


def explanation(
    key: str, substituted: str, value: Quantity, *, sources: tuple[str, ...] = (), assumptions: tuple[str, ...] = ()
) -> Explanation:
    """The formula called `key` with its numbers put in."""
    found = FORMULAS[key]
    return Explanation(
        title=found.title,
        formula=found.formula,
        substituted=substituted,
        value=value,
        source="; ".join(sources) or found.source,
        not_counted=found.not_counted,
        assumptions=assumptions,
    )


def numbers(row: Row) -> str:
    """The sizes in a row's formula: `m=4096 k=4096 n=11008`."""
    shown = []
    for name, value in row.dims.items():
        shown.append(f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}")
    return " ".join(shown)


def sum_of(rows: list[Row], figure: Callable[[Row], object]) -> str:
    """A sum over rows, written out: path figure·repeat for the largest ones, the rest counted."""
    parts = [f"{row.path} {figure(row):,}·{row.repeat}" for row in rows if row.repeat and figure(row)]
    shown = parts[:12]
    more = f" + {len(parts) - 12} further rows" if len(parts) > 12 else ""
    return (" + ".join(shown) or "0") + more
