"""Speculative decoding as arithmetic (Leviathan et al. 2023, arXiv:2211.17192): what a small draft saves a large target.

A round: the draft proposes g tokens, one step each; the target reads them and the token before in one pass of g + 1; each
proposal is kept with probability a as long as those before it were, and one token comes on top. The paper takes a pass of
g + 1 tokens to cost what a step of one does; here both have the roofline's time, so that a long draft, a large batch or many
experts have their price.
"""

from __future__ import annotations

from operator import attrgetter

import msgspec
from msgspec.structs import replace

from ..presets.device import Device
from ..presets.errors import UsageError
from ..presets.spec import ModelSpec
from .counts import Number, each
from .latency import roofline
from .work import Pass

LONGEST_DRAFT = 32  # up to which the best length is looked for


def expected_tokens(acceptance: float, draft_tokens: int) -> float:
    """Tokens of a round: 1 + a + a^2 + ... + a^g = (1 - a^(g+1)) / (1 - a), equation 1; a the chance that a proposal is kept.

    It takes the chances to be independent and alike.

    >>> round(expected_tokens(0.8, 4), 4), expected_tokens(1.0, 4), expected_tokens(0.0, 4)
    (3.3616, 5.0, 1.0)
    """
    return float(sum(acceptance**i for i in range(draft_tokens + 1)))


def equal_cost_speed_up(acceptance: float, draft_tokens: int, cost: float) -> float:
    """(1 - a^(g+1)) / ((1 - a)(g c + 1)), theorem 3.8: a step of the draft costs c of one of the target, a check as much as a step.

    >>> round(equal_cost_speed_up(0.8, 5, 0.05), 2)
    2.95
    """
    return expected_tokens(acceptance, draft_tokens) / (draft_tokens * cost + 1)


class Speculation(msgspec.Struct, frozen=True, kw_only=True):
    """A round at the floor of the roofline; times in seconds.

    Attributes:
        tokens_per_round: expected tokens of a round.
        draft_s: all steps of the draft. verify_s: the target's pass over the proposals. round_s: both.
        token_s: round_s over the tokens. speed_up: of the target's own step over it.
        equal_cost_speed_up: what theorem 3.8 says, where a check costs a step.
        best_draft_tokens, best_speed_up: the length with the largest speed-up, at most `LONGEST_DRAFT`; 0 where none helps.
    """

    tokens_per_round: Number
    draft_s: Number
    verify_s: Number
    round_s: Number
    token_s: Number
    speed_up: Number
    equal_cost_speed_up: Number
    best_draft_tokens: Number
    best_speed_up: Number


def speculation(target: ModelSpec, draft: ModelSpec, work: Pass, device: Device, *, acceptance: float, draft_tokens: int) -> Speculation:
    """A round that begins where a decode step of the target would attend `work.context` tokens. Raises UsageError."""
    check(target, draft, acceptance, draft_tokens)

    def at_point(batch: int, context: int, source: int | None) -> Speculation:
        step = replace(work, phase="decode", new=None, batch=batch, context=context, source=source, stored=None)
        return one_point(target, draft, step, device, acceptance, draft_tokens, of_target=replace(step, stored=work.stored))

    found = each(at_point, work.batch, work.context, work.source)
    if isinstance(found, Speculation):
        return found
    return Speculation(**{name: each_of(name, found) for name in Speculation.__struct_fields__})


def each_of(name: str, found: Number) -> Number:
    """One figure at every point."""
    return each(attrgetter(name), found)


def check(target: ModelSpec, draft: ModelSpec, acceptance: float, draft_tokens: int) -> None:
    """Refuse what makes no sense."""
    if not 0 <= acceptance <= 1:
        raise UsageError(f"acceptance {acceptance} is no probability; allowed: 0 to 1")
    if not 1 <= draft_tokens <= LONGEST_DRAFT:
        raise UsageError(f"{draft_tokens} draft tokens; allowed: 1 to {LONGEST_DRAFT}")
    for spec in (target, draft):
        if not spec.decodes:
            raise UsageError(f"{spec.name} has no decoder and so no decode step to speculate on")


def one_point(
    target: ModelSpec, draft: ModelSpec, step: Pass, device: Device, acceptance: float, draft_tokens: int, *, of_target: Pass
) -> Speculation:
    """At one batch and context; `of_target` is the same step with the target's stored bytes, where it has them."""
    drafts = [float(roofline(draft, replace(step, context=step.context + i), device).floor_s) for i in range(LONGEST_DRAFT)]  # type: ignore[arg-type]

    def verify(count: int) -> float:
        # the last of g + 1 new tokens stands g after the one that a plain step would read
        return float(roofline(target, replace(of_target, new=count + 1, context=step.context + count), device).floor_s)  # type: ignore[arg-type]

    alone = verify(0)

    def speed_up(count: int) -> float:
        return expected_tokens(acceptance, count) * alone / (sum(drafts[:count]) + verify(count))

    best = max(range(LONGEST_DRAFT + 1), key=speed_up)
    draft_s, verify_s, tokens = sum(drafts[:draft_tokens]), verify(draft_tokens), expected_tokens(acceptance, draft_tokens)
    return Speculation(
        tokens_per_round=tokens,
        draft_s=draft_s,
        verify_s=verify_s,
        round_s=draft_s + verify_s,
        token_s=(draft_s + verify_s) / tokens,
        speed_up=tokens * alone / (draft_s + verify_s),
        equal_cost_speed_up=equal_cost_speed_up(acceptance, draft_tokens, drafts[0] / alone),
        best_draft_tokens=best,
        best_speed_up=speed_up(best),
    )
