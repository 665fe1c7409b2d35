"""What the commands say about weights in files: formats, what no row uses, differences from the description."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..estimators.held import Stored
    from ..estimators.stored import Difference
    from ..presets.loader import Loaded
    from ..presets.spec import ModelSpec
    from ..presets.weights.stored import StoredWeights
    from .output import Answer
    from .tables import Table


def stored_lines(held: Stored) -> list[str]:
    """What bytes rest on when a file says them."""
    bits = 8 * held.total_bytes / held.elements if held.elements else 0
    formats = ", ".join(f"{dtype} {count / max(held.total_bytes, 1):.1%}" for dtype, count in held.by_dtype[:4])
    more = f" and {len(held.by_dtype) - 4} more" if len(held.by_dtype) > 4 else ""
    lines = [f"weights as stored in {held.origin}: {held.total_bytes:,} bytes, {bits:.4g} bits an element ({formats}{more})"]
    if held.named_bytes < held.total_bytes:
        rest = 1 - held.named_bytes / held.total_bytes
        lines.append(f"{rest:.1%} of the stored bytes have names that say no operator; they are shared out in proportion to the parameters")
    return lines + [f"of them {group.bytes:,} bytes are read in no pass: {group.kind} ({group.tensors} tensors)" for group in held.beside]


def stored_terms(held: Stored, paths: set[str]) -> list[dict[str, object]]:
    """What is stored and belongs to no row, as terms: with the rows' bytes they add up to the file's."""
    lost = [path for path in held.owned if path not in paths]
    rest = [{"path": path, "weight_bytes": held.owned_bytes(path), "copies": 1, "kept_bytes": 0, "repeat": 0} for path in sorted(lost)]
    return rest + [
        {"path": f"stored/{group.kind}", "weight_bytes": group.bytes, "copies": 1, "kept_bytes": 0, "repeat": 0} for group in held.beside
    ]


# --- params ---------------------------------------------------------------------------------------------------------


def stored_figures(weights: StoredWeights, found: tuple[Difference, ...] | None) -> dict[str, object]:
    """What `params` adds for a file: counts and bytes as stored, by format, and the differences from the description."""
    return {
        "stored_elements": weights.elements,
        "stored_bytes": weights.bytes,
        "stored_bits_per_weight": 8 * weights.bytes / weights.elements if weights.elements else None,
        "stored_tensors": len(weights.tensors),
        "stored_dtypes": {
            share.dtype: {"tensors": share.tensors, "elements": share.elements, "bytes": share.bytes} for share in weights.by_dtype()
        },
        "stored_differences": None if found is None else {one.kind: one.elements for one in found},
    }


def stored_tables(weights: StoredWeights, found: tuple[Difference, ...] | None, total: int | None) -> tuple[Table, ...]:
    """The formats in the file, and why its count is not the description's."""
    from .quantities import Kind
    from .tables import Column, Table

    columns = (
        Column("dtype", Kind.TEXT), Column("tensors", Kind.EXACT), Column("elements", Kind.EXACT), Column("bytes", Kind.EXACT),
        Column("bits", Kind.NUMBER, "bits each"), Column("share", Kind.RATIO, "share of bytes"),
    )  # fmt: skip
    rows = [
        (share.dtype, share.tensors, share.elements, share.bytes, bits(share.bytes, share.elements), share.bytes / max(weights.bytes, 1))
        for share in weights.by_dtype()
    ]
    rows.append(("all", len(weights.tensors), weights.elements, weights.bytes, bits(weights.bytes, weights.elements), 1.0))
    tables = [Table(f"As stored in {weights.origin}", columns, tuple(rows))]
    if found is not None and total is not None and found:
        shown = (Column("kind", Kind.TEXT), Column("elements", Kind.EXACT), Column("why", Kind.TEXT))
        title = f"Stored {weights.elements:,}, described {total:,}: a difference of {weights.elements - total:,}"
        tables.append(Table(title, shown, tuple((one.kind, one.elements, one.why) for one in found)))
    return tuple(tables)


def bits(stored: int, elements: int) -> float | None:
    """Bits an element."""
    return 8 * stored / elements if elements else None


def differences_of(spec: ModelSpec | None, weights: StoredWeights | None) -> tuple[Difference, ...] | None:
    """Differences by kind, None where there is nothing to compare."""
    if spec is None or weights is None:
        return None
    from ..estimators.stored import differences

    return differences(spec, weights)


def agreement(weights: StoredWeights, found: tuple[Difference, ...] | None) -> tuple[str, ...]:
    """What `params` says about a file in its assumptions."""
    lines = [f"{', '.join(weights.files[:2])}{' and more' if len(weights.files) > 2 else ''}: headers read, values not"]
    if found is not None and not found:
        lines.append("the file holds exactly the described parameters")
    return (*lines, *weights.notes)


def only_stored(loaded: Loaded) -> Answer:
    """The answer of `params` for weights that nothing describes: what is stored."""
    from ..presets.errors import UsageError
    from .output import Answer

    weights = loaded.weights
    if weights is None:
        raise UsageError(loaded.why)
    names = ("active_params", "embedding_params", "lm_head_params", "non_embedding_params", "rule_of_thumb_params", "buffers")
    figures: dict[str, object] = {"total_params": weights.elements, **dict.fromkeys(names)}
    return Answer(
        command="params",
        inputs={"model": weights.origin},
        assumptions=("counts are of stored elements, packed ones as they are stored", loaded.why, *weights.notes),
        result=figures | stored_figures(weights, None),
        terms=tuple(
            {"path": tensor.name, "op": tensor.dtype, "component": "stored", "params": tensor.elements, "copies": 1, "bytes": tensor.bytes}
            for tensor in weights.tensors
        ),
        tables=stored_tables(weights, None, None),
    )
