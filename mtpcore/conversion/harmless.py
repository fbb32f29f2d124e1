"""What published files say that changes nothing a model file does, each name with the reason.

What is in no table of its file, and is read by nothing, is refused or said to be lost.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["CONFIGURATION", "GENERATION", "NEUTRAL_GENERATION", "TOKENIZER"]


def _table(groups: Mapping[str, str]) -> dict[str, str]:
    """Return the reason by name, of groups of names that share one."""
    return {name: reason for reason, names in groups.items() for name in names.split()}


CONFIGURATION: Mapping[str, str] = _table(
    {
        "who wrote the file, and with what": """
            model_type name_or_path _name_or_path _commit_hash transformers_version auto_map
            unsloth_version unsloth_fixed unsloth_tracked_ids base_model_name_or_path license
            finetuning_task task_specific_params transformers.js_config transformers_weights
            is_encoder_decoder speculators_version speculators_config speculators_model_type
            architectures""",
        "the type of the weights, which the tensors say": "torch_dtype dtype",
        "of training": """
            initializer_range initializer_factor initializer_cutoff_factor attention_dropout
            hidden_dropout attention_probs_dropout_prob embd_pdrop resid_pdrop attn_pdrop dropout
            dropout_rate classifier_dropout output_router_logits router_aux_loss_coef
            aux_loss_alpha seq_aux router_jitter_noise router_z_loss_coef gradient_checkpointing
            hidden_dropout_prob layer_dropout mtp_loss_scaling_factor""",
        "which tokens are special: the tokenizer says it": """
            bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id unk_token_id
            forced_bos_token_id forced_eos_token_id tokenizer_class""",
        "how transformers runs a model, with the same results": """
            use_cache output_attentions output_hidden_states return_dict torchscript use_bfloat16
            chunk_size_feed_forward pretraining_tp attn_implementation _attn_implementation
            _attn_implementation_autoset use_flash_attn is_decoder add_cross_attention
            cross_attention_hidden_size tie_encoder_decoder pruned_heads ep_size tf_legacy_loss
            experts_implementation mlp_implementation base_model_tp_plan base_model_pp_plan""",
        "labels of classifiers, which models of text have not": """
            id2label label2id num_labels problem_type""",
        "how texts are generated: generation_config.json says it": """
            max_length min_length do_sample early_stopping num_beams num_beam_groups
            diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty
            no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences
            output_scores return_dict_in_generate remove_invalid_values
            exponential_decay_length_penalty suppress_tokens begin_suppress_tokens prefix""",
        "how weights are stored: the tensors say it": "quantization_config compression_config",
        "which tensors there are, and their shapes: the tensors say it": """
            tie_word_embeddings attention_bias mlp_bias attention_out_bias vocab_size
            text_vocab_size""",
        "how many heads there are: the tensors say it": """
            num_nextn_predict_layers mtp_num_hidden_layers""",
        "of images and sound, whose encoders are left out": """
            vision_config audio_config image_token_id image_token_index video_token_id
            audio_token_id vision_start_token_id vision_end_token_id vision_token_id
            boi_token_id eoi_token_id boa_token_id eoa_token_id eoa_token_index""",
    }
)

GENERATION: Mapping[str, str] = _table(
    {
        "the tokenizer or the configuration says it": """
            bos_token_id pad_token_id decoder_start_token_id chat_format""",
        "how transformers keeps keys and values": """
            use_cache cache_implementation cache_config max_cache_len return_legacy_cache""",
        "how much text there is to be is the caller's choice": """
            max_length max_new_tokens num_return_sequences max_time max_window_size""",
        "who wrote the file": """
            transformers_version _from_model_config transformers.js_config _commit_hash""",
        "how transformers runs a model": """
            trust_remote_code prefill_chunk_size disable_compile compile_config low_memory
            continuous_batching_config output_attentions output_hidden_states output_scores
            output_logits return_dict_in_generate remove_invalid_values""",
        "how transformers drafts; no text changes by it": """
            num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold
            assistant_lookbehind target_lookbehind assistant_early_exit is_assistant
            prompt_lookup_num_tokens max_matching_ngram_size assistant_ensemble_weight
            speculation_type use_mtp""",
        "of beams, which there are not": """
            early_stopping length_penalty diversity_penalty num_beam_groups""",
    }
)

NEUTRAL_GENERATION: Mapping[str, object] = {
    "num_beams": 1,
    "typical_p": 1.0,
    "top_h": 1.0,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "guidance_scale": 1.0,
}
"""Values, beside null, false, zero and nothing, by which a setting does nothing."""

TOKENIZER: Mapping[str, str] = _table(
    {
        "the tokenizer itself says it": """
            add_prefix_space sp_model_kwargs legacy vocab_type backend from_slow is_local
            pretokenize_regex do_lower_case_default vocab_file merges_file tokenizer_file
            tokenizer_type byte_fallback added_tokens""",
        "who wrote the file, and with what": """
            name_or_path processor_class auto_map special_tokens_map_file transformers_version
            image_processor_type feature_extractor_type unsloth_version local_files_only""",
        "how many tokens there may be is the model's and the caller's choice": """
            model_max_length max_length max_len truncation truncation_side truncation_strategy
            stride padding padding_side pad_to_multiple_of pad_token_type_id model_input_names""",
        "how transformers tidies a decoded text": """
            clean_up_tokenization_spaces spaces_between_special_tokens errors""",
        "the template says it": "use_default_system_prompt chat_template_kwargs response_schema",
        "names for tokens that are special anyway": """
            extra_special_tokens model_specific_special_tokens image_token audio_token
            video_token extra_ids""",
    }
)
