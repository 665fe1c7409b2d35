"""How often a robot can be told what to do: the roofline of one look, from the image to the last token of its actions.

One look: the towers and the projector over the images, the prompt with the images' tokens in it, then the action's tokens, the
first from the prompt's pass and each later one from a decode step. A chunk of several actions shares one look (Zhao et al. 2023,
ACT, arXiv:2304.13705, section IV.A). In parallel: all tokens of the chunk stand after the prompt as empty places and come out of
one pass that sees both ways (Kim et al. 2025, OpenVLA-OFT, arXiv:2502.19645, section IV).
"""

from __future__ import annotations

from operator import attrgetter

import msgspec
from msgspec.structs import replace

from ..presets.device import Device
from ..presets.errors import UsageError
from ..presets.spec import Connector, Conv, Linear, ModelSpec
from .counts import Number, each, larger
from .latency import Roofline, generation, roofline, row_times
from .work import Pass, image_count


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """One look of one robot at the floor of the roofline; times in seconds.

    Attributes:
        actions: that one look gives. tokens: of all of them.
        vision_s: towers and projector. prompt_s: the language model over the prompt (in parallel: and the actions).
        decode_s: the decode steps (0 in parallel). look_s: all.
        control_hz: looks a second. actions_per_s: actions of all looks of a second.
    """

    actions: Number
    tokens: Number
    vision_s: Number
    prompt_s: Number
    decode_s: Number
    look_s: Number
    control_hz: Number
    actions_per_s: Number


def tokens_brought(spec: ModelSpec, joint: Connector, images: int) -> int:
    """Tokens of the context that images take: those a connector carries, merged where it merges."""
    tower = spec.stack(joint.source)
    merge = max((leaf.merge // leaf.expand for leaf in joint.parts if isinstance(leaf, Linear | Conv)), default=1)
    return (joint.tokens or tower.default_tokens or 1) * images // max(merge, 1)


def image_tokens(spec: ModelSpec, images: int) -> int:
    """Tokens of the main stack's context that `images` take."""
    joints = [joint for joint in spec.connectors if joint.target == spec.main.name and spec.stack(joint.source).tokens == "image"]
    return sum(tokens_brought(spec, joint, images) for joint in joints)


def usual_context(spec: ModelSpec, images: int) -> int | None:
    """The prompt of a policy: its images' tokens and those of a usual instruction; None for any other model."""
    return None if spec.action is None else image_tokens(spec, images) + spec.action.prompt


def control(spec: ModelSpec, work: Pass, device: Device, *, chunk: int = 1, parallel: bool = False) -> Control | None:
    """`chunk` actions a look, after a prompt of `work.context` tokens with the images' in it; None without a published peak.

    Raises UsageError for a model that is no policy, less than one action, and images that do not fit the prompt.
    """
    if spec.action is None:
        raise UsageError(f"{spec.name} says no actions: --chunk and --parallel are for a vision-language-action model, as openvla-7b")
    if chunk < 1:
        raise UsageError(f"a look gives at least 1 action, got a chunk of {chunk}")
    if device.peak_for(work.activation_dtype.name) is None:
        return None
    tokens, brought = chunk * spec.action.tokens, image_tokens(spec, image_count(spec, work))

    def at_point(batch: int, context: int, source: int | None) -> Control:
        if context <= brought:
            raise UsageError(f"the images are {brought} tokens of the context, got --ctx {context}; give more, or fewer --images")
        point = replace(work, batch=batch, context=context, source=source)
        return one_look(spec, point, device, chunk, tokens, parallel=parallel)

    found = each(at_point, work.batch, work.context, work.source)
    if isinstance(found, Control):
        return found
    return Control(**{name: each(attrgetter(name), found) for name in Control.__struct_fields__})


def one_look(spec: ModelSpec, work: Pass, device: Device, chunk: int, tokens: int, *, parallel: bool) -> Control:
    """At one batch and one prompt."""
    decode_s = 0.0
    if parallel:
        # every empty place gives a token, so the output head runs at all of them whatever `last_logits` says of a plain prompt
        whole_look = replace(work, phase="prefill", new=None, context=work.context + tokens, full_attention=True, last_logits=False)
        line = roofline(spec, whole_look, device)
    else:
        line = roofline(spec, replace(work, phase="prefill", new=None), device)
        whole = generation(spec, work, device, tokens)
        assert whole is not None
        assert line.floor_s is not None
        decode_s = whole.total_s - line.floor_s if tokens > 1 else 0.0
    vision_s, prompt_s = parts(spec, line)
    look_s = vision_s + prompt_s + decode_s
    return Control(
        actions=chunk,
        tokens=tokens,
        vision_s=vision_s,
        prompt_s=prompt_s,
        decode_s=decode_s,
        look_s=look_s,
        control_hz=1 / look_s,
        actions_per_s=chunk / look_s,
    )


def parts(spec: ModelSpec, line: Roofline) -> tuple[float, float]:
    """Seconds of what runs on images, and of the rest."""
    seeing = {stack.name for stack in spec.stacks if stack.tokens == "image"} | {joint.name for joint in spec.connectors}
    assert line.peak_flops_per_s is not None
    sums = [0.0, 0.0]
    for row in line.rows:
        compute, memory = row_times(row, line.work, line.device, line.peak_flops_per_s)
        sums[row.path.split("/")[0] not in seeing] += float(larger(compute, memory))
    return sums[0], sums[1]
