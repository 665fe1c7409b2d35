"""Keys that any configuration may carry and that change no count, as data."""

from __future__ import annotations

from collections.abc import Mapping

# What the library and its trainers write beside the architecture.
BOOKKEEPING = frozenset("""
    _name_or_path _commit_hash architectures auto_map model_type transformers_version adapters_version torch_dtype dtype
    attn_implementation _attn_implementation _attn_implementation_internal _attn_implementation_autoset
    _flash_attn_2_enabled _from_model_config _experts_implementation use_flash_attn use_flash_attention use_flash_attention_2 use_flash_attn_2
    use_cache use_return_dict return_dict output_attentions output_hidden_states output_scores torchscript use_bfloat16 id2label label2id num_labels
    problem_type finetuning_task model_size model_max_length max_sequence_length task_specific_params license language tags model_name name architecture version
    initializer_range initializer_factor initializer_std init_std init_method gradient_checkpointing use_mup init_device
    unsloth_version unsloth_fixed use_liger_kernel _sliding_window_pattern_note debug verbose custom_pipelines
    quantization_config compression_config pretraining_tp tokenizer_class processor_class rescale_every
    tf_legacy_loss loss_type ignore_index keys_to_ignore_at_inference summary_dropout ctx_len n_ctx train_seq_len
""".split())

# Token ids, generation defaults, losses: they choose what is computed on, not how much.
GENERATION = frozenset("""
    max_length min_length max_new_tokens min_new_tokens do_sample early_stopping num_beams num_beam_groups
    diversity_penalty temperature top_k top_p typical_p min_p repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size bad_words_ids suppress_tokens begin_suppress_tokens forced_bos_token_id
    forced_eos_token_id remove_invalid_values exponential_decay_length_penalty num_return_sequences prefix
    generation_config cache_implementation sep_token pad_token bos_token eos_token
""".split())

# How positions are encoded by rotation, numerical details, scalars that multiply: no weights, no products.
NUMERICS = frozenset("""
    rope_theta rope_scaling rope_parameters rope_local_base_freq rope_type rotary_pct rotary_emb_base rotary_base
    partial_rotary_factor rope_interleave original_max_position_embeddings original_rope_theta rope_interleaved
    rms_norm_eps layer_norm_eps layer_norm_epsilon norm_eps norm_epsilon layernorm_epsilon eps
    hidden_act hidden_activation activation_function hidden_dropout hidden_dropout_prob classifier_dropout
    attn_logit_softcapping final_logit_softcapping query_pre_attn_scalar mup_base_width scale_attn_weights
    scale_attention_softmax_in_fp32 attention_softmax_in_fp32 fp32_residual_connection residual_in_fp32 embed_scale
    scale_attn_by_inverse_layer_idx reorder_and_upcast_attn apply_residual_connection_post_layernorm chunk_size_feed_forward
    use_logn_attn use_dynamic_ntk logn_list softmax_scale embedding_multiplier attention_multiplier residual_multiplier
    logits_scaling logit_scale use_fused_rope fused_norm use_parallel_embedding slow_but_exact
""".split())

HARMLESS = BOOKKEEPING | GENERATION | NUMERICS

# Endings that say the same: token ids, dropouts, coefficients of losses, ranges of initial values.
HARMLESS_ENDINGS = (
    "_token_id", "_token_ids", "_token_index", "_token", "_dropout", "_dropout_prob", "_dropout_p", "_pdrop", "_dropout_rate",
    "_loss_coef", "_loss_weight", "_loss_reduction", "_loss_alpha", "_initializer_range", "_init_std", "_jitter_noise", "_layerdrop", "dropout", "_eps", "_epsilon",
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
    if key in HARMLESS or key.endswith(HARMLESS_ENDINGS):
        return True
    return key in HARMLESS_AT and any(value == allowed and type(value) is type(allowed) for allowed in HARMLESS_AT[key])
