"""What `tfm latency` says of a robot's policy: how often it can be told what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..presets.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..estimators.policy import Control
    from ..presets.spec import ModelSpec
    from .output import Explanation
    from .quantities import Quantity
    from .request import Case

KEYS = {
    "control_hz": "control_hz",
    "actions_per_s": "actions_per_s",
    "look_s": "look_s",
    "look_vision_s": "vision_s",
    "look_prompt_s": "prompt_s",
    "look_decode_s": "decode_s",
    "actions_per_look": "actions",
    "action_tokens": "tokens",
}


def chunk_of(spec: ModelSpec, new: int | None, chunk: int | None, *, parallel: bool) -> int | None:
    """Actions of one look, from --chunk or --new; None where there is nothing to say of actions. Raises UsageError."""
    if spec.action is None:
        if chunk is not None or parallel:
            raise UsageError(f"{spec.name} says no actions: --chunk and --parallel are for a vision-language-action model, as openvla-7b")
        return None
    if new is None:
        return chunk or 1
    if chunk is not None:
        raise UsageError(f"--chunk and --new both say how many tokens come; give one (--chunk n is --new {spec.action.tokens}n)")
    if parallel and new % spec.action.tokens:
        raise UsageError(f"--new {new} is no whole number of actions of {spec.action.tokens} tokens; --parallel needs one, or --chunk")
    return new // spec.action.tokens if new % spec.action.tokens == 0 else None


def control_of(case: Case, chunk: int | None, *, parallel: bool) -> Control | None:
    """One look, where the model is a policy."""
    if chunk is None:
        return None
    from ..estimators.policy import control

    assert case.device is not None
    return control(case.spec, case.work, case.device, chunk=chunk, parallel=parallel)


def figures(got: Control | None) -> dict[str, object]:
    """The keys of the contract; None of a model that is no policy."""
    return {key: None if got is None else getattr(got, name) for key, name in KEYS.items()}


def facts(got: Control | None) -> Iterator[tuple[str, Quantity]]:
    """The look and its parts, the rates."""
    from .quantities import Kind, Quantity

    if got is None:
        return
    yield "image to projector", Quantity(got.vision_s, Kind.SECONDS)
    yield "prompt" if got.decode_s else "prompt and actions", Quantity(got.prompt_s, Kind.SECONDS)
    if got.decode_s:
        yield f"{got.tokens - 1} decode steps", Quantity(got.decode_s, Kind.SECONDS)
    yield f"one look, {got.actions} action{'s' if got.actions > 1 else ''}", Quantity(got.look_s, Kind.SECONDS)
    yield "control rate (Hz)", Quantity(got.control_hz, Kind.NUMBER)
    if got.actions > 1:
        yield "actions/s", Quantity(got.actions_per_s, Kind.NUMBER)


def explanations(got: Control | None) -> Iterator[Explanation]:
    """The rate with its numbers put in."""
    from .explain import explanation
    from .quantities import Kind, Quantity

    if got is None:
        return
    parts = f"{got.vision_s:.4g} s image + {got.prompt_s:.4g} s prompt + {got.decode_s:.4g} s decode steps"
    yield explanation("control_hz", f"1 / ({parts})", Quantity(got.control_hz, Kind.NUMBER))
    yield explanation("actions_per_s", f"{got.actions} / {got.look_s:.4g} s", Quantity(got.actions_per_s, Kind.NUMBER))


def assumptions(spec: ModelSpec, chunk: int | None, new: int | None, *, parallel: bool) -> Iterator[str]:
    """What a look is."""
    if spec.action is None:
        return
    if chunk is None:
        yield f"--new {new} is no whole number of actions of {spec.action.tokens} tokens: no control rate"
    elif parallel:
        yield (
            f"in parallel: {chunk * spec.action.tokens} empty places after the prompt, all of them from one pass that sees both ways "
            "(OpenVLA-OFT); its head of a few small matrices is not counted, the language model's output head is, at every position"
        )
    else:
        tokens = chunk * spec.action.tokens
        yield f"{tokens} action tokens: the prompt's pass gives the first, {tokens - 1} decode steps the others, one after another"
