// See hf_keys.h. The list below is what the public configurations of the supported types carry
// beside the settings that matter: bookkeeping, training-time settings, and defaults of text
// generation.
#include "model/hf_keys.h"
#include "base/text.h"
#include <string.h>

static const char *const without_effect[] = {
    // bookkeeping
    "architectures",
    "_name_or_path",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_from_model_config",
    "_commit_hash",
    "_hf_config_class",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "tokenizer",
    "tokenizer_class",
    "model_type",
    "name_or_path",
    "finetuning_task",
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "task_specific_params",
    "prefix",
    "transformers.js_config",
    "is_llama_config",
    "unsloth_fixed",
    "unsloth_version",
    "_flash_attn_2_enabled",
    "mask_value",
    // how it is run or trained
    "use_cache",
    "use_flash_attn",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "return_dict",
    "use_return_dict",
    "torchscript",
    "use_bfloat16",
    "gradient_checkpointing",
    "pretraining_tp",
    "attention_dropout",
    "hidden_dropout",
    "attn_pdrop",
    "embd_pdrop",
    "resid_pdrop",
    "chunk_size_feed_forward",
    "reorder_and_upcast_attn",
    "pad_token_id",
    "sep_token_id",
    "decoder_start_token_id",
    "is_decoder",
    "keys_to_ignore_at_inference",
    "neftune_noise_alpha",
    // GPT-2's classification head
    "summary_type",
    "summary_use_proj",
    "summary_activation",
    "summary_proj_to_labels",
    "summary_first_dropout",
    // generation
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "max_length",
    "min_length",
    "max_new_tokens",
    "do_sample",
    "num_beams",
    "num_beam_groups",
    "num_return_sequences",
    "early_stopping",
    "repetition_penalty",
    "length_penalty",
    "diversity_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "bad_words_ids",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "remove_invalid_values",
    "exponential_decay_length_penalty",
    "suppress_tokens",
    "begin_suppress_tokens",
    "output_scores",
    "return_dict_in_generate",
    "tf_legacy_loss",
    NULL,
};

static bool listed(const char *key, const char *const *list) {
    for (int i = 0; list[i]; i++)
        if (strcmp(list[i], key) == 0) return true;
    return false;
}

int hf_keys_check(json_t *object, const char *where, const char *const *used, struct err *err) {
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        if (listed(key, used) || listed(key, without_effect)) continue;
        if (json_is_null(value) || json_is_false(value))
            continue; // a feature of another type that is off
        size_t count = 0;
        while (used[count]) count++;
        const char *nearest = text_nearest(key, used, count);
        return err_set(
            err, ERR_DATA,
            "%s: %s: this key may change what the model computes, and weft does not know it%s%s%s",
            where, key, nearest ? "; did you mean \"" : "", nearest ? nearest : "",
            nearest ? "\"?" : "; remove it if it has no effect");
    }
    return 0;
}
