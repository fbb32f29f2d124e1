"""What published files say that changes nothing a model file does, each name with the reason.

What is in no table of its file, and is read by nothing, is refused or said to be lost.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["GENERATION", "NEUTRAL_GENERATION"]


def _table(groups: Mapping[str, str]) -> dict[str, str]:
    """Return the reason by name, of groups of names that share one."""
    return {name: reason for reason, names in groups.items() for name in names.split()}


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
