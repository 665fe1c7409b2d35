"""Keys that any configuration may carry and that change no count, as data."""

from __future__ import annotations

from collections.abc import Mapping

# What the library and its trainers write beside the architecture.
BOOKKEEPING = frozenset(
    """
    _name_or_path _commit_hash _from_model_config architectures auto_map model_type transformers_version adapters_version
    torch_dtype dtype fp16 bf16 fp32 use_bfloat16 attn_implementation _attn_implementation _attn_implementation_internal
    _attn_implementation_autoset _flash_attn_2_enabled _experts_implementation use_flash_attn use_flash_attention
    use_flash_attention_2 use_flash_attn_2 use_sdpa is_llama_config use_cache use_return_dict return_dict output_attentions
    output_hidden_states output_scores output_past torchscript id2label label2id num_labels _num_labels problem_type finetuning_task
    xla_device sentence_transformers
    task_specific_params license language tags model_name name version model_size model_max_length max_sequence_length
    initializer_range initializer_factor initializer_std init_std init_method init_device gradient_checkpointing use_mup
    unsloth_version unsloth_fixed use_liger_kernel debug verbose custom_pipelines quantization_config compression_config
    quantization pretraining_tp tokenizer_class processor_class tf_legacy_loss loss_type ignore_index
    keys_to_ignore_at_inference ctx_len n_ctx train_seq_len seq_length max_seq_length max_seq_len max_sequence_length
    max_position_embeddings transformers.js_config gguf model_parallel_size tensor_parallel tp_size ep_size pp_size
""".split()
)

# Token ids, generation defaults, losses: they choose what is computed on, not how much.
GENERATION = frozenset(
    """
    max_length min_length max_new_tokens min_new_tokens do_sample early_stopping num_beams num_beam_groups
    diversity_penalty temperature top_k top_p typical_p min_p repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size bad_words_ids suppress_tokens begin_suppress_tokens remove_invalid_values
    exponential_decay_length_penalty num_return_sequences prefix generation_config cache_implementation
    num_logits_to_keep output_router_logits
""".split()
)

# How positions are rotated, numerical details, scalars that multiply: no weights, no products. A window's first layer
# (`max_window_layers`) says nothing where the family does not read `use_sliding_window`.
NUMERICS = frozenset(
    """
    rope_theta rope_percent rope_scaling rope_parameters rope_local_base_freq rope_type rope_ratio rotary rotary_pct rotary_emb_base
    rotary_base rope_interleave rope_interleaved partial_rotary_factor original_max_position_embeddings original_rope_theta
    original_rope use_rope max_window_layers rms_norm_eps layer_norm_eps layer_norm_epsilon norm_eps norm_epsilon
    layernorm_epsilon eps hidden_act hidden_activation activation_function classifier_dropout
    attn_logit_softcapping final_logit_softcapping query_pre_attn_scalar mup_base_width mup_denominator scale_attn_weights
    attention_softmax_in_fp32 scale_attention_softmax_in_fp32 softmax_in_fp32 fp32_residual_connection residual_in_fp32
    embed_scale scale_attn_by_inverse_layer_idx reorder_and_upcast_attn apply_residual_connection_post_layernorm
    chunk_size_feed_forward use_logn_attn use_dynamic_ntk logn_list softmax_scale embedding_multiplier
    attention_multiplier residual_multiplier logits_scaling logit_scale fused_norm use_parallel_embedding
    clip_qkv attention_clip_val
""".split()
)

HARMLESS = BOOKKEEPING | GENERATION | NUMERICS

# Endings that say the same: token ids, dropouts, coefficients of losses, ranges of initial values.
HARMLESS_ENDINGS = (
    "_token_id", "_token_ids", "_token_index", "_dropout", "_dropout_prob", "_dropout_p", "_pdrop", "_dropout_rate",
    "_loss_coef", "_loss_weight", "_loss_reduction", "_loss_alpha", "_initializer_range", "_init_std", "_jitter_noise",
    "_layerdrop", "dropout", "_eps", "_epsilon",
)  # fmt: skip

# Harmless at these values only: anything else names something that has to be understood.
HARMLESS_AT: Mapping[str, tuple[object, ...]] = {
    "pruned_heads": ({},),
    "tie_encoder_decoder": (False,),
    "is_encoder_decoder": (False,),
    "is_decoder": (False, True),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "is_composition": (False,),
    # Biases that a family without them may say it does not have.
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "lm_head_bias": (False,),
}


# A false under such a name may turn off what is on by default; any other false is a feature that is absent.
ON_BY_DEFAULT = ("bias", "norm", "tie", "affine")


def says_nothing(key: str, value: object) -> bool:
    """Whether a value adds nothing whatever its key means: strings choose names; null, false, 0 and empty are absence."""
    if value is False:
        return not any(word in key for word in ON_BY_DEFAULT)
    return value is None or isinstance(value, str) or value in (0, [], {})


def is_harmless(key: str, value: object) -> bool:
    """Whether a key that no family asked for can be passed over.

    >>> is_harmless("bos_token_id", 1), is_harmless("num_extra_layers", 2), is_harmless("flavour", "vanilla")
    (True, False, True)
    """
    if says_nothing(key, value):
        return True
    if key == "layer_types" and isinstance(value, list) and set(map(str, value)) == {"full_attention"}:
        return True  # what a family that reads no list has anyway
    if isinstance(value, dict) and all(says_nothing(inner, item) for inner, item in value.items()):
        return True
    if key in HARMLESS or key.endswith(HARMLESS_ENDINGS):
        return True
    return key in HARMLESS_AT and any(value == allowed and type(value) is type(allowed) for allowed in HARMLESS_AT[key])
