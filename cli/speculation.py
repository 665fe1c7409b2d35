"""What `tfm latency --draft` says of speculative decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ..presets.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..estimators.speculative import Speculation
    from ..presets.spec import ModelSpec
    from .output import Explanation
    from .quantities import Quantity
    from .request import Case

FIELDS = (
    "tokens_per_round", "draft_s", "verify_s", "round_s", "token_s", "speed_up", "equal_cost_speed_up", "best_draft_tokens",
    "best_speed_up",
)  # fmt: skip
DEFAULT_ACCEPTANCE, DEFAULT_DRAFT_TOKENS = 0.8, 4


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for: the small model, the chance that a proposal is kept, proposals a round."""

    spec: ModelSpec
    acceptance: float
    tokens: int
    assumed: bool


def asked_draft(model: str | None, acceptance: str | None, tokens: int | None, presets: str | None, *, lenient: bool) -> Draft | None:
    """From the options; raises UsageError where some make no sense without the others."""
    if model is None:
        if acceptance is not None or tokens is not None:
            raise UsageError("--acceptance and --draft-tokens need the small model: --draft MODEL, as in --draft llama-7b")
        return None
    from ..presets.loader import given_folders, load_model
    from .units import parse_ratio

    return Draft(
        spec=load_model(model, given_folders(presets), lenient=lenient),
        acceptance=DEFAULT_ACCEPTANCE if acceptance is None else parse_ratio(acceptance, allow_zero=True, name="--acceptance"),
        tokens=tokens or DEFAULT_DRAFT_TOKENS,
        assumed=acceptance is None,
    )


def speculation_of(case: Case, draft: Draft | None) -> Speculation | None:
    """A round, where a draft was asked for."""
    if draft is None:
        return None
    from ..estimators.speculative import speculation

    assert case.device is not None
    return speculation(case.spec, draft.spec, case.work, case.device, acceptance=draft.acceptance, draft_tokens=draft.tokens)


def figures(got: Speculation | None) -> dict[str, object]:
    """The keys of the contract; None where no draft was asked for."""
    return {f"speculative_{name}": None if got is None else getattr(got, name) for name in FIELDS}


def facts(got: Speculation | None, draft: Draft | None) -> Iterator[tuple[str, Quantity]]:
    """A round and what it gains."""
    from .quantities import Kind, Quantity

    if got is None or draft is None:
        return
    yield f"{draft.tokens} steps of {draft.spec.name}", Quantity(got.draft_s, Kind.SECONDS)
    yield f"check of {draft.tokens} + 1 tokens", Quantity(got.verify_s, Kind.SECONDS)
    yield "tokens expected of a round", Quantity(got.tokens_per_round, Kind.NUMBER)
    yield "a token, speculating", Quantity(got.token_s, Kind.SECONDS)
    yield "speed-up", Quantity(got.speed_up, Kind.NUMBER)
    best = f"with {got.best_draft_tokens} draft tokens" if got.best_draft_tokens else "without a draft"
    yield f"best speed-up, {best}", Quantity(got.best_speed_up, Kind.NUMBER)


def explanations(got: Speculation | None, draft: Draft | None) -> Iterator[Explanation]:
    """Tokens of a round and the speed-up with their numbers put in."""
    from .explain import explanation
    from .quantities import Kind, Quantity

    if got is None or draft is None:
        return
    a, g = draft.acceptance, draft.tokens
    numbers = f"(1 - {a:g}^{g + 1}) / (1 - {a:g})" if a < 1 else f"{g} + 1: none is refused"  # 0 / 0 in the formula
    yield explanation("tokens_per_round", numbers, Quantity(got.tokens_per_round, Kind.NUMBER))
    alone = got.speed_up * got.token_s
    numbers = f"{got.tokens_per_round:.4g} · {alone:.4g} s / ({got.draft_s:.4g} s + {got.verify_s:.4g} s)"
    yield explanation("speed_up", numbers, Quantity(got.speed_up, Kind.NUMBER))
    yield explanation(
        "equal_cost_speed_up", f"a = {a:g}, g = {g}, c = a step of the draft / one of the target",
        Quantity(got.equal_cost_speed_up, Kind.NUMBER),
    )  # fmt: skip


def assumptions(target: ModelSpec, draft: Draft | None) -> Iterator[str]:
    """What a round rests on."""
    if draft is None:
        return
    from ..presets.spec import Embedding

    said = "not given: " if draft.assumed else ""
    yield f"speculative: acceptance {draft.acceptance:g} ({said}a property of the two models and the text, to be measured)"
    yield "a round costs the draft's steps and one pass of the target over its proposals; both caches are there, sampling is free"
    yield "the draft in the formats that the options say, not those of a file of its weights; --gqa is the target's alone"
    rows = [
        next((leaf.rows for leaf in spec.main.embeddings if isinstance(leaf, Embedding) and leaf.role == "token"), None)
        for spec in (target, draft.spec)
    ]
    if rows[0] != rows[1]:
        yield f"vocabularies of {rows[0]} and {rows[1]} tokens: speculation needs one vocabulary, so these two cannot be paired as they are"
