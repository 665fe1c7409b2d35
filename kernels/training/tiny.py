"""Two descriptions small enough to be trained in seconds, made of the same parts as every preset."""

from __future__ import annotations

from ...presets import spec as s

ENCODER_DECODER, DECODER_ONLY = "encoder-decoder", "decoder-only"
MODELS = (ENCODER_DECODER, DECODER_ONLY)
WIDTH, HEADS, INNER, LAYERS = 64, 4, 256, 2
SOURCE = ("tfm's own teaching model, trained by `tfm train-demo`; the parts are those of Vaswani et al. 2017, arXiv:1706.03762",)
BEFORE = s.Norm(type="layer", name="norm")


def tiny_spec(model: str, vocabulary: int) -> s.ModelSpec:
    """The description called `model` over so many tokens."""
    return encoder_decoder(vocabulary) if model == ENCODER_DECODER else decoder_only(vocabulary)


def encoder_decoder(vocabulary: int) -> s.ModelSpec:
    """Sinusoidal positions and one table for everything, as in the original; norms before the sublayers, which learn sooner."""
    attention, feed_forward = sublayer("attention", attends(s.Full())), sublayer("feed_forward", inner())
    encoder = s.Stack(
        name="encoder", role="encoder", tokens="source", d_model=WIDTH, final=(BEFORE,),
        embeddings=(s.Embedding(name="token", rows=vocabulary, scale=WIDTH**0.5), s.Sinusoidal()),
        blocks=(s.Block(pattern=(s.Layer(sublayers=(attention, feed_forward)),), repeat=LAYERS),),
    )  # fmt: skip
    itself = sublayer("attention", attends(s.Causal()))
    across = sublayer("cross_attention", attends(s.Full(), source="encoder"))
    decoder = s.Stack(
        name="decoder", role="decoder", d_model=WIDTH, final=(BEFORE,),
        embeddings=(s.Embedding(name="token", rows=vocabulary, shares="encoder/embedding/token", scale=WIDTH**0.5), s.Sinusoidal()),
        blocks=(s.Block(pattern=(s.Layer(sublayers=(itself, across, feed_forward)),), repeat=LAYERS),),
    )  # fmt: skip
    return model("tiny-encoder-decoder", (encoder, decoder), vocabulary, shares="encoder/embedding/token")


def decoder_only(vocabulary: int) -> s.ModelSpec:
    """Rotary positions, norms before the sublayers and an output matrix of its own, as today's language models.

    With the table in its place it needs three times the steps: a token's own row is what its state begins as, so that repeating it
    is likeliest at first.
    """
    subs = (sublayer("attention", attends(s.Causal(), position=s.Rope())), sublayer("feed_forward", inner()))
    decoder = s.Stack(
        name="decoder", role="decoder", d_model=WIDTH, final=(BEFORE,),
        embeddings=(s.Embedding(name="token", rows=vocabulary, scale=WIDTH**0.5),),
        blocks=(s.Block(pattern=(s.Layer(sublayers=subs),), repeat=LAYERS),),
    )  # fmt: skip
    return model("tiny-decoder-only", (decoder,), vocabulary)


def model(name: str, stacks: tuple[s.Stack, ...], vocabulary: int, *, shares: str | None = None) -> s.ModelSpec:
    """Stacks under an output matrix, which may be a token table."""
    head = s.Linear(name="weight", d_in=WIDTH, d_out=vocabulary, shares=shares)
    return s.ModelSpec(name=name, source=SOURCE, stacks=stacks, heads=(s.Head(name="lm_head", stack="decoder", parts=(head,)),))


def attends(mask: s.Mask, *, source: str | None = None, position: s.Position | None = None) -> s.Attention:
    """Multi-head attention without biases."""
    return s.Attention(heads=HEADS, kv_heads=HEADS, head_dim=WIDTH // HEADS, mask=mask, source=source, position=position)


def inner() -> s.FeedForward:
    """The feed-forward network of the original."""
    return s.FeedForward(d_ff=INNER, activation="relu", bias=True)


def sublayer(name: str, mixer: s.Mixer) -> s.Sublayer:
    """A branch with its norm before it."""
    return s.Sublayer(name=name, mixer=mixer, pre_norm=BEFORE)
