"""What a model *is*: frozen data, read from a preset or a configuration, that every number follows from.

A model is named **stacks** joined by **connectors**, with **heads** on top. A stack is a run of layers, a layer an
ordered list of **sublayers**, a sublayer one mixer (attention, state-space, convolution ...) or one feed-forward with
its norms. The leaves are **parts**: things with weights of their own, as PyTorch's modules are.

Nothing here computes a cost; `estimators/operators.py` turns this description into operators, and the ledger turns
those into rows. Sizes are counts of elements; no byte, no FLOP stands here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from .errors import UsageError

# Wide enough for any published model, small enough that products of four sizes stay exact in Python and readable.
Size = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
MOST_LAYERS = 4096  # of a stack: they are gone through one by one, so this bounds time and memory
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.\-]+$", max_length=64)]


class Data(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"):
    """Base of every type here: frozen, keyword only, an unknown or mistyped field does not load."""


# --- parts: leaves with weights of their own ------------------------------------------------------------------------


class Linear(Data, frozen=True, tag="linear"):
    """y = x W (+ b), x [positions, d_in], W [d_in, d_out].

    Attributes:
        shares: path of the weight it uses in place of one of its own (a head tied to the input embedding); a bias
            stays its own.
        expand, merge: it runs at `expand` positions for every `merge` tokens of its stack (a projector that merges
            2 x 2 patches has merge=4).
        once: it runs once per sequence (a pooler, a classifier).
        activation: elementwise function on its output (the tanh of BERT's pooler); changes no count.
    """

    name: Name
    d_in: Size
    d_out: Size
    bias: bool = False
    shares: str | None = None
    expand: Size = 1
    merge: Size = 1
    once: bool = False
    activation: str | None = None


class Conv(Data, frozen=True, tag="conv"):
    """A convolution over positions, weight [d_out, d_in / groups, *kernel]; positions are those of its output.

    `activation`: elementwise function on its output (the GELUs of Whisper's stem); changes no count.
    """

    name: Name
    d_in: Size
    d_out: Size
    kernel: tuple[Size, ...]
    stride: tuple[Size, ...] | None = None
    groups: Size = 1
    bias: bool = False
    expand: Size = 1
    merge: Size = 1
    once: bool = False
    activation: str | None = None


NORM_VECTORS = {"layer": 2, "layer_unbiased": 1, "layer_plain": 0, "rms": 1, "rms_plain": 0, "batch": 2}


class Norm(Data, frozen=True, tag="norm"):
    """A normalisation over `width` elements (the stack's d_model when not given).

    Kinds: `layer` (weight and bias), `layer_unbiased` (weight), `layer_plain` (neither), `rms` (weight), `rms_plain`
    (nothing), `batch` (weight and bias; running statistics are buffers). `unit_offset`: the weight multiplies as 1 + w.
    """

    type: Literal["layer", "layer_unbiased", "layer_plain", "rms", "rms_plain", "batch"]
    name: Name = "norm"
    width: Size | None = None
    eps: float = 1e-5
    unit_offset: bool = False


class Embedding(Data, frozen=True, tag="embedding"):
    """A table [rows, width] that is gathered from, never multiplied.

    Attributes:
        role: what indexes it.
        width: row width (the stack's d_model when not given).
        shares: path of the table it uses in place of one of its own (T5's decoder gathers from the encoder's).
        scale: factor on what is gathered (sqrt(d_model) in the original Transformer and in Gemma).
        offset: first usable row, where a table has rows before position 0 (OPT, RoBERTa).
    """

    name: Name
    rows: Size
    role: Literal["token", "position", "type", "other"] = "token"
    width: Size | None = None
    shares: str | None = None
    scale: float | None = None
    offset: Count = 0


class Parameter(Data, frozen=True, tag="parameter"):
    """A bare tensor without a matrix product: class token, layer scale, position table that is added, logit scale.

    `buffer`: PyTorch stores it but does not count it as a parameter (router correction biases); it is stated apart.
    """

    name: Name
    shape: tuple[Size, ...]
    buffer: bool = False


class Sinusoidal(Data, frozen=True, tag="sinusoidal"):
    """Fixed sine and cosine positions (Vaswani et al. 2017, section 3.5): no parameters."""

    name: Name = "position"
    base: float = 10000.0


class Similarity(Data, frozen=True, tag="similarity"):
    """Every text against every image: [B, width] @ [width, B x images] (CLIP, Radford et al. 2021, figure 3)."""

    name: Name
    width: Size


class StreamMix(Data, frozen=True, tag="stream_mix"):
    """Residual streams mixed by a matrix that the input itself makes, [streams, streams] @ [streams, width]: no weights.

    Hyper-connections (Zhu et al. 2024, arXiv:2409.19606) carry that many residuals in place of one.
    """

    name: Name
    streams: Size
    width: Size


Part = Linear | Conv | Norm | Embedding | Parameter | Sinusoidal | Similarity | StreamMix


# --- what attention sees and how it knows positions -----------------------------------------------------------------


class Full(Data, frozen=True, tag="full"):
    """Every query sees every key."""


class Causal(Data, frozen=True, tag="causal"):
    """A query sees its own position and those before it, aligned bottom-right."""


class Sliding(Data, frozen=True, tag="sliding"):
    """Causal, and at most `window` keys including its own."""

    window: Size


class Chunked(Data, frozen=True, tag="chunked"):
    """Causal inside chunks: position p sees from floor(p / chunk) * chunk on (Llama 4)."""

    chunk: Size


class Local(Data, frozen=True, tag="local"):
    """Both ways, at most `reach` positions to either side (ModernBERT: a window of 128 is a reach of 64)."""

    reach: Size


class Blocked(Data, frozen=True, tag="blocked"):
    """Both ways inside blocks of `size` positions that are computed apart (Qwen2.5-VL: windows of 8 x 8 patches)."""

    size: Size


Mask = Full | Causal | Sliding | Chunked | Local | Blocked


class RopeScaling(Data, frozen=True, tag="rope_scaling"):
    """How rotary frequencies are stretched beyond the trained context; changes no count.

    `type` is the recipe's published name; the other fields are its numbers, None where the recipe has none.
    """

    type: Literal["linear", "dynamic", "ntk", "yarn", "llama3", "longrope", "proportional"]
    factor: float = 1.0
    original_positions: Size | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()


class Rope(Data, frozen=True, tag="rope"):
    """Rotary positions (Su et al. 2021, arXiv:2104.09864) on the first `dims` of every head (all when not given).

    `sections`: widths that time, height and width take (Qwen2-VL). `interleaved`: pairs are
    neighbours (GPT-J, Cohere), not halves.
    """

    theta: float = 10000.0
    dims: Size | None = None
    interleaved: bool = False
    scaling: RopeScaling | None = None
    sections: tuple[Size, ...] | None = None


class Alibi(Data, frozen=True, tag="alibi"):
    """Linear biases on distance (Press et al. 2021, arXiv:2108.12409): no parameters."""


class RelativeBuckets(Data, frozen=True, tag="relative_buckets"):
    """T5's bucketed relative bias (Raffel et al. 2019, section 2.1).

    The table [buckets, heads] is one for all layers, a parameter of the stack.
    """

    buckets: Size
    max_distance: Size = 128
    bidirectional: bool = False


class Disentangled(Data, frozen=True, tag="disentangled"):
    """DeBERTa's content-to-position and position-to-content terms (He et al. 2020, arXiv:2006.03654).

    `span`: positions of the relative table on either side; `own_projections`: position keys and queries have weights
    of their own, else they use the content's (queries have a bias, keys with `key_bias`). `capped`: no more positions
    than tokens are projected (DeBERTa 1). The table [2 span, d_model] is one for all layers, a parameter of the stack.
    """

    span: Size
    terms: tuple[Literal["c2p", "p2c"], ...]
    own_projections: bool = False
    key_bias: bool = False
    capped: bool = False


Position = Rope | Alibi | RelativeBuckets | Disentangled


# --- mixers ---------------------------------------------------------------------------------------------------------


class HeadNorm(Data, frozen=True, tag="head_norm"):
    """A norm on queries and keys (and values) before the scores.

    Attributes:
        over: `head` one weight of head_dim used by every head; `heads` one per head; `all` over heads x head_dim.
        values: it also normalises V (Gemma 3n and 4), without a weight.
    """

    type: Literal["layer", "layer_unbiased", "layer_plain", "rms", "rms_plain"] = "rms"
    over: Literal["head", "heads", "all"] = "head"
    values: bool = False
    eps: float = 1e-6
    unit_offset: bool = False


class Indexer(Data, frozen=True, tag="indexer"):
    """A small attention that picks the `top_k` keys the large one attends (DeepSeek sparse attention, V3.2 report).

    `q_in`: width of what its queries are projected from; `own`: this layer has the indexer, else it uses the choice
    of an earlier layer. `block`: keys are chosen in blocks of that many tokens.
    """

    heads: Size
    head_dim: Size
    top_k: Size
    q_in: Size
    key_norm: Literal["layer", "rms", "none"] = "layer"
    query_norm: Literal["rms", "none"] = "none"
    head_weights: bool = True
    key_heads: Size = 1
    block: Size = 1
    own: bool = True


class Attention(Data, frozen=True, tag="attention"):
    """Multi-head, grouped-query or multi-query attention (Vaswani et al. 2017; Ainslie et al. 2023).

    q_proj [d_in, heads * head_dim], k_proj [d_in, kv_heads * head_dim], v_proj [d_in, kv_heads * value_dim], o_proj
    [heads * value_dim, d_out].

    Attributes:
        bias: which projections have one.
        source: the stack whose output gives keys and values (cross-attention); None attends its own stack.
        source_width: width of that output, when it differs from d_in.
        keys: `own`; `values_are_keys`: no v_proj, V is made of the keys' projection (Gemma 4); `reused`: neither K
            nor V is computed or stored here, an earlier layer's cache is read (shared-KV layers).
        gate: a sigmoid on the output: `full` one value an element (q_proj is twice as wide), `head` one a head.
        sinks: one learned logit a head in the softmax's denominator.
        d_in, d_out: widths where they differ from the stack's d_model (Zamba's block sees 2 x d_model).
        extra: further weights of this layer, not multiplied in the scores.
    """

    heads: Size
    kv_heads: Size
    head_dim: Size
    mask: Mask
    value_dim: Size | None = None
    bias: tuple[Literal["q", "k", "v", "o"], ...] = ()
    position: Position | None = None
    head_norm: HeadNorm | None = None
    source: str | None = None
    source_width: Size | None = None
    keys: Literal["own", "values_are_keys", "reused"] = "own"
    gate: Literal["none", "full", "head"] = "none"
    sinks: bool = False
    softcap: float | None = None
    scale: float | None = None
    indexer: Indexer | None = None
    d_in: Size | None = None
    d_out: Size | None = None
    extra: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise UsageError(f"kv_heads {self.kv_heads} does not divide heads {self.heads}; give one that does")

    @property
    def v_dim(self) -> int:
        """Width of a value head."""
        return self.value_dim or self.head_dim


class LatentAttention(Data, frozen=True, tag="latent_attention"):
    """Multi-head latent attention, MLA (DeepSeek-V2, arXiv:2405.04434, section 2.1).

    q: d_model -> q_rank -> heads x (nope_dim + rope_dim), or straight when q_rank is None. kv: d_model -> kv_rank +
    rope_dim, kv_rank -> heads x (nope_dim + value_dim). The cache holds kv_rank + rope_dim a token.
    """

    heads: Size
    kv_rank: Size
    nope_dim: Size
    rope_dim: Size
    value_dim: Size
    mask: Mask
    q_rank: Size | None = None
    bias: bool = False
    norm_eps: float = 1e-6
    position: Position | None = None
    scale: float | None = None
    indexer: Indexer | None = None
    extra: tuple[Part, ...] = ()


class Mamba(Data, frozen=True, tag="mamba"):
    """Selective state space, Mamba-1 (Gu & Dao 2023, arXiv:2312.00752, section 3).

    in_proj d_model -> 2 d_inner, depthwise conv, x_proj d_inner -> dt_rank + 2 state, dt_proj dt_rank -> d_inner, A
    [d_inner, state], D [d_inner], out_proj. `heads` > 1 splits x_proj and dt_proj by head (Zamba). `inner_norms`: dt, B
    and C are normalised, with weights (Jamba).
    """

    d_inner: Size
    state: Size
    conv: Size
    dt_rank: Size
    heads: Size = 1
    conv_bias: bool = True
    proj_bias: bool = False
    inner_norms: bool = False


class Mamba2(Data, frozen=True, tag="mamba2"):
    """State space duality, Mamba-2 (Dao & Gu 2024, arXiv:2405.21060, section 7).

    in_proj d_model -> 2 d_inner + 2 groups state + heads, depthwise conv over d_inner + 2 groups state, A, D and
    dt_bias one a head, gated norm over d_inner, out_proj.
    """

    heads: Size
    head_dim: Size
    groups: Size
    state: Size
    conv: Size
    conv_bias: bool = True
    proj_bias: bool = False
    gated_norm: bool = True
    chunk: Size = 256


class GatedDelta(Data, frozen=True, tag="gated_delta"):
    """Gated DeltaNet, a linear attention (Yang et al. 2024, arXiv:2412.06464; Qwen3-Next).

    State of value_heads x key_dim x value_dim. Projections q, k (key_heads x key_dim), v and output gate (value_heads x
    value_dim), beta and decay (value_heads), depthwise conv over q, k and v without bias, gated norm over value_dim.
    """

    key_heads: Size
    value_heads: Size
    key_dim: Size
    value_dim: Size
    conv: Size


class RgLru(Data, frozen=True, tag="rg_lru"):
    """Real-gated linear recurrent unit in Griffin's block (De et al. 2024, arXiv:2402.19427, section 2.4).

    Two branches d_model -> width with bias, depthwise conv with bias, two block-diagonal gates of `blocks` blocks with
    bias, one decay a channel, out width -> d_model with bias.
    """

    width: Size
    conv: Size
    blocks: Size


class ShortConv(Data, frozen=True, tag="short_conv"):
    """Gated short convolution (LFM2): in_proj d_model -> 3 width, depthwise conv, out_proj width -> d_model."""

    width: Size
    conv: Size
    bias: bool = False


class CompressedAttention(Data, frozen=True, tag="compressed_attention"):
    """DeepSeek-V4's attention: one head that is key and value at once, a window, and older tokens as compressed entries.

    q: d_model -> q_rank -> heads x head_dim; kv: d_model -> head_dim; one sink a head; output in `out_groups` groups of
    heads, each -> out_rank, all -> d_model.

    Attributes:
        ratio: tokens that become one entry, a mean weighted by a gate, channel by channel (None: the window only).
        overlap: an entry is made of its own tokens and of those of the entry before (both projections twice as wide).
        indexer: picks the entries that a query sees, by entries of its own made the same way.
        values_apart: the window's values are kept beside its keys, although they are the same.
    """

    heads: Size
    head_dim: Size
    q_rank: Size
    window: Size
    out_groups: Size
    out_rank: Size
    ratio: Size | None = None
    overlap: bool = False
    indexer: Indexer | None = None
    values_apart: bool = False
    position: Position | None = None
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.heads * self.head_dim % self.out_groups:
            raise UsageError(
                f"out_groups {self.out_groups} does not divide heads x head_dim {self.heads * self.head_dim}; give one that does"
            )


# --- feed-forward ---------------------------------------------------------------------------------------------------


class FeedForward(Data, frozen=True, tag="feed_forward"):
    """d_model -> d_ff -> d_model; `gated` has a third matrix (GLU, Shazeer 2020, arXiv:2002.05202).

    `act_params`: learned numbers of the activation itself (Apertus' xIELU has two). `inner_norm`: a norm over d_ff.
    """

    d_ff: Size
    activation: str
    gated: bool = False
    bias: bool = False
    act_params: Count = 0
    inner_norm: Norm | None = None
    d_in: Size | None = None
    d_out: Size | None = None


class MoE(Data, frozen=True, tag="moe"):
    """Routed experts, `top_k` of `experts` for every token, beside `shared` ones that always run.

    Attributes:
        shared_gate: one sigmoid gate on the shared expert (Qwen2-MoE).
        router_bias: the router's matrix has a bias; `correction`: PyTorch buffer of one value an expert (DeepSeek-V3),
            or `correction_param`, the same as a counted parameter.
        latent: width the routed experts work in, with a projection in and out (Nemotron 3 Ultra).
        hashed: experts are not chosen but looked up by token, in a fixed table [hashed, top_k] that PyTorch holds as a
            buffer (Roller et al. 2021, arXiv:2106.04426); the router still weighs them.
        extra: further weights.
    """

    experts: Size
    top_k: Size
    expert: FeedForward
    shared: FeedForward | None = None
    shared_gate: bool = False
    router: bool = True
    router_bias: bool = False
    correction: Literal["none", "buffer", "parameter"] = "none"
    scoring: Literal["softmax", "sigmoid", "softmax_topk", "sqrtsoftplus"] = "softmax"
    normalize: bool = True
    routed_scale: float = 1.0
    groups: Size = 1
    top_groups: Size = 1
    latent: Size | None = None
    latent_bias: bool = False
    hashed: Size | None = None
    extra: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        if self.top_k > self.experts:
            raise UsageError(f"top_k {self.top_k} is larger than experts {self.experts}; a token can only use as many as there are")


class Chain(Data, frozen=True, tag="chain"):
    """Parts one after another, as a sublayer of its own (Gemma 4's per-layer input, Zamba's linear)."""

    parts: tuple[Part, ...]
    activation: str | None = None


Mixer = Attention | LatentAttention | CompressedAttention | Mamba | Mamba2 | GatedDelta | RgLru | ShortConv | FeedForward | MoE | Chain


# --- layers, stacks, the model --------------------------------------------------------------------------------------


class Sublayer(Data, frozen=True, tag="sublayer"):
    """One residual branch.

    Attributes:
        pre_norm: on its input. output_norm: on its output, before the residual is added. residual_norm: after the sum
            (post-norm, the original Transformer).
        shared: sublayers with the same name use the same weights (ALBERT, Zamba); the first one owns them.
        extra: further weights of the branch (layer scale).
    """

    name: Name
    mixer: Mixer
    pre_norm: Norm | None = None
    output_norm: Norm | None = None
    residual_norm: Norm | None = None
    shared: str | None = None
    extra: tuple[Part, ...] = ()
    residual_scale: float | None = None


class Layer(Data, frozen=True, tag="layer"):
    """Sublayers in order; `parallel` ones read the same input and are added together (GPT-J, Falcon, Cohere).

    `name` tells kinds of layers apart where a stack has several (`sliding`, `global`, `moe`).
    """

    sublayers: tuple[Sublayer, ...]
    name: str = ""
    parallel: bool = False


class Block(Data, frozen=True, tag="block"):
    """A pattern of layers, `repeat` times."""

    pattern: tuple[Layer, ...]
    repeat: Size = 1


class Stack(Data, frozen=True, tag="stack"):
    """Layers over one sequence of tokens.

    Attributes:
        role: a `decoder` keeps a cache and runs in decode steps; an `encoder` runs once.
        tokens: what its positions are: `context` (--ctx), `source` (--src), `image` (patches, fixed) or `sound` (a tower
            that hears: no pass has sound, so it rests).
        default_tokens: positions per image, or the source's length where the model fixes one (Whisper 1500).
        embeddings: what makes the first hidden state, in order. final: what follows the last layer.
    """

    name: Name
    d_model: Size
    role: Literal["encoder", "decoder"]
    blocks: tuple[Block, ...]
    tokens: Literal["context", "source", "image", "sound"] = "context"
    default_tokens: Size | None = None
    embeddings: tuple[Part, ...] = ()
    final: tuple[Part, ...] = ()
    max_positions: Size | None = None

    def __post_init__(self) -> None:
        if self.depth > MOST_LAYERS:
            raise UsageError(f"stack {self.name!r} has {self.depth} layers; allowed: at most {MOST_LAYERS}")

    def layers(self) -> Iterator[Layer]:
        """Every layer from the input to the output."""
        for block in self.blocks:
            for _ in range(block.repeat):
                yield from block.pattern

    @property
    def depth(self) -> int:
        """Number of layers."""
        return sum(block.repeat * len(block.pattern) for block in self.blocks)


class Connector(Data, frozen=True, tag="connector"):
    """Parts that carry one stack's output to another (a vision tower's projector), over the source's positions."""

    name: Name
    source: str
    target: str
    parts: tuple[Part, ...]


class Head(Data, frozen=True, tag="head"):
    """Parts on top of a stack: the output matrix, a classifier, a contrastive projection."""

    name: Name
    stack: str
    parts: tuple[Part, ...]
    softcap: float | None = None
    scale: float | None = None


class ModelSpec(Data, frozen=True, tag="model"):
    """A transformer, described once.

    Attributes:
        source: where the numbers come from; none loads without.
        total_params: the published or counted exact figure, checked by a test, never used.
        images: images per sequence when not said (0 for a language model with a vision tower, 1 for pure vision).
        absent: stacks that are named and not described (a decoder taken alone keeps its cross-attention): what attends
            them keeps its weights and rests.
        assumptions: what a reader of this description must know.
    """

    name: str
    source: tuple[str, ...]
    stacks: tuple[Stack, ...]
    title: str = ""
    heads: tuple[Head, ...] = ()
    connectors: tuple[Connector, ...] = ()
    total_params: Size | None = None
    images: Count = 0
    absent: tuple[Name, ...] = ()
    license: str | None = None
    assumptions: tuple[str, ...] = ()
    extra: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        if not self.source or not all(line.strip() for line in self.source):
            raise UsageError(f"model {self.name!r} has no source; say where its numbers come from")
        names = [stack.name for stack in self.stacks]
        if not names or len(set(names)) != len(names):
            raise UsageError(f"model {self.name!r} needs at least one stack and different names for them; got {names}")
        for owner, stack in self._references():
            if stack not in (*names, *self.absent):
                raise UsageError(f"{owner} names the stack {stack!r}, which {self.name!r} does not have; it has {', '.join(names)}")

    def _references(self) -> Iterator[tuple[str, str]]:
        for head in self.heads:
            yield f"head {head.name!r}", head.stack
        for joint in self.connectors:
            yield f"connector {joint.name!r}", joint.source
            yield f"connector {joint.name!r}", joint.target
        for stack, sub in self.sublayers():
            if isinstance(sub.mixer, Attention) and sub.mixer.source is not None:
                yield f"{stack.name}/{sub.name}", sub.mixer.source

    def sublayers(self) -> Iterator[tuple[Stack, Sublayer]]:
        """Every kind of sublayer of every stack, once a pattern."""
        for stack in self.stacks:
            for block in stack.blocks:
                for layer in block.pattern:
                    yield from ((stack, sub) for sub in layer.sublayers)

    @property
    def uses_latent_attention(self) -> bool:
        """Whether any layer is MLA, whose prefill and decode are computed in different forms."""
        return any(isinstance(sub.mixer, LatentAttention) for _, sub in self.sublayers())

    def stack(self, name: str) -> Stack:
        """The stack called `name`; raises KeyError."""
        return {stack.name: stack for stack in self.stacks}[name]

    @property
    def main(self) -> Stack:
        """The stack that people mean: the decoder if there is one, else the one that reads text, else the first."""
        order = sorted(self.stacks, key=lambda stack: (stack.role != "decoder", stack.tokens == "image"))
        return order[0]

    @property
    def decodes(self) -> bool:
        """Whether there is a decoder, and so a decode phase."""
        return any(stack.role == "decoder" for stack in self.stacks)
