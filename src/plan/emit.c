// Keys of a planned job; see emit.h.
#include "plan/emit.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *boolean(bool value) {
    return value ? "true" : "false";
}

static int put_list(const char *key, const int *values, int count, struct text *out) {
    if (text_printf(out, "%s=", key) != 0) return -1;
    for (int i = 0; i < count; i++)
        if (text_printf(out, "%s%d", i ? "," : "", values[i]) != 0) return -1;
    return text_puts(out, "\n");
}

static int put_rope(const struct model_rope *r, struct text *out) {
    static const char *const scalings[] = {"none", "linear", "dynamic", "llama3", "yarn"};
    int failed = text_printf(out, "model.rope.scaling=%s\nmodel.rope.theta=%.17g\n",
                             scalings[r->scaling], r->theta);
    if (r->scaling == ROPE_PLAIN || failed) return failed;
    failed = text_printf(out, "model.rope.factor=%.17g\n", r->factor);
    if (r->scaling == ROPE_LLAMA3)
        failed = failed || text_printf(out,
                                       "model.rope.low_freq_factor=%.17g\n"
                                       "model.rope.high_freq_factor=%.17g\n",
                                       r->low_freq_factor, r->high_freq_factor);
    if (r->scaling == ROPE_YARN)
        failed = failed ||
                 text_printf(out,
                             "model.rope.beta_fast=%.17g\nmodel.rope.beta_slow=%.17g\n"
                             "model.rope.attention_factor=%.17g\n"
                             "model.rope.truncate=%s\n",
                             r->beta_fast, r->beta_slow, r->attention_factor, boolean(r->truncate));
    if (r->scaling != ROPE_LINEAR)
        failed =
            failed || text_printf(out, "model.rope.original_context=%d\n", r->original_context);
    return failed ? -1 : 0;
}

static int put_experts(const struct model_config *c, struct text *out) {
    if (c->experts == 0) return 0;
    int dense[MODEL_MAX_LAYERS], count = 0;
    for (int i = 0; i < c->layers; i++)
        if (c->layer_dense[i]) dense[count++] = i;
    if (text_printf(out,
                    "model.experts=%d\nmodel.top_k=%d\nmodel.expert_ffn=%d\nmodel.shared_ffn=%d\n"
                    "model.norm_top_k=%s\nmoe.aux=%.17g\n",
                    c->experts, c->top_k, c->expert_ffn, c->shared_ffn, boolean(c->norm_top_k),
                    c->aux_coefficient) != 0)
        return -1;
    return count ? put_list("model.dense_layers", dense, count, out) : 0;
}

static int put_model(const struct model_config *c, int context, struct text *out) {
    static const char *const qk_norms[] = {"none", "head", "full"};
    bool windows = false, same = true;
    for (int i = 0; i < c->layers; i++) {
        windows = windows || c->layer_window[i] > 0;
        same = same && c->layer_window[i] == c->layer_window[0];
    }
    int failed = text_printf(
        out, "model.family=%s\n%s%s%smodel.layers=%d\nmodel.hidden=%d\nmodel.heads=%d\n",
        c->family == FAMILY_GPT2 ? "gpt2" : "llama", c->variant[0] ? "model.variant=" : "",
        c->variant, c->variant[0] ? "\n" : "", c->layers, c->hidden, c->heads);
    failed = failed || text_printf(out,
                                   "model.kv_heads=%d\nmodel.head_dim=%d\nmodel.ffn=%d\n"
                                   "model.vocab=%d\nmodel.context=%d\n",
                                   c->kv_heads, c->head_dim, c->ffn, c->vocab,
                                   context > c->context ? context : c->context);
    failed = failed || text_printf(out,
                                   "model.norm_place=%s\nmodel.norm_eps=%.17g\nmodel.qk_norm=%s\n"
                                   "model.qkv_bias=%s\nmodel.out_bias=%s\nmodel.mlp_bias=%s\n",
                                   c->norm_place == NORM_AFTER ? "after" : "before", c->norm_eps,
                                   qk_norms[c->qk_norm], boolean(c->qkv_bias), boolean(c->out_bias),
                                   boolean(c->mlp_bias));
    failed = failed || put_experts(c, out) != 0;
    failed = failed || text_printf(out, "model.tied_head=%s\nmodel.init_std=%.17g\n",
                                   boolean(c->tied_head), c->init_std);
    if (windows)
        failed =
            failed || put_list("model.window", c->layer_window, same ? 1 : c->layers, out) != 0;
    failed = failed || text_printf(out, "model.bos=%d\nmodel.eos=%d\n", c->bos_id, c->eos_id);
    if (c->stop_count > 0)
        failed = failed || put_list("model.stops", c->stop_ids, c->stop_count, out) != 0;
    if (!c->learned_positions) failed = failed || put_rope(&c->rope, out) != 0;
    return failed ? -1 : 0;
}

static int put_layout(const struct job *job, struct text *out) {
    static const char *const modes[] = {"none", "selective", "selective_mlp", "full"};
    const struct layout *l = &job->layout;
    const int *size = l->mesh.size;
    int failed =
        text_printf(out,
                    "data.context=%d\ntrain.batch=%lld\ntrain.micro_batch=%d\ntrain.precision=%s\n"
                    "train.recompute=%s\n",
                    job->context, (long long)job_sequences(job), job->rows,
                    job->precision == HARDWARE_FP32 ? "fp32" : "bf16", modes[job->recompute]);
    failed = failed || text_printf(out,
                                   "parallel.tp=%d\nparallel.pp=%d\nparallel.cp=%d\n"
                                   "parallel.dp=%d\nparallel.ep=%d\nparallel.sequence=%s\n"
                                   "parallel.zero=%d\n",
                                   size[MESH_TP], size[MESH_PP], size[MESH_CP], size[MESH_DP],
                                   l->mesh.ep, boolean(l->sequence_parallel), l->zero);
    failed = failed || text_printf(out, "pipeline.schedule=%s\npipeline.chunks=%d\n",
                                   pipeline_kind_name(job->schedule), l->chunks);
    if (failed) return -1;
    if (size[MESH_PP] == 1) return 0;
    int layers[LAYOUT_MAX_STAGES];
    for (int s = 0; s < layout_stages(l); s++)
        layers[s] = l->layer_first[s + 1] - l->layer_first[s];
    return put_list("pipeline.layers", layers, layout_stages(l), out);
}

int emit_keys(const struct job *job, bool model, struct text *out, struct err *err) {
    if (model_is_latent(&job->model))
        return err_set(err, ERR_USAGE,
                       "plan: --emit: the engine does not train latent attention (kv_lora_rank "
                       "%d); it can be planned, not run",
                       job->model.kv_lora_rank);
    if (job->precision != HARDWARE_BF16 && job->precision != HARDWARE_FP32)
        return err_set(err, ERR_USAGE,
                       "plan: --emit: the engine trains in bf16 or fp32, not in %s; plan with "
                       "--precision bf16",
                       hardware_precision_name(job->precision));
    if ((model && put_model(&job->model, job->context, out) != 0) || put_layout(job, out) != 0)
        return err_set(err, ERR_MEMORY, "no memory for a configuration");
    return 0;
}

// ---- YAML

// Prints the headings of `key` that the key before it had not, and returns its last name.
static const char *put_groups(const char *before, const char *key, struct text *out, int *depth,
                              int *failed) {
    const char *at = key, *dot;
    *depth = 0;
    bool same = true;
    while ((dot = strchr(at, '.')) != NULL) {
        size_t length = (size_t)(dot - key) + 1;
        same = same && before && strncmp(before, key, length) == 0;
        if (!same)
            *failed =
                *failed || text_printf(out, "%*s%.*s:\n", 2 * *depth, "", (int)(dot - at), at) != 0;
        (*depth)++;
        at = dot + 1;
    }
    return at;
}

static int put_line(const char *line, size_t bytes, char before[128], struct text *out,
                    struct err *err) {
    size_t length = strcspn(line, "=");
    char key[128];
    int depth, failed = 0;
    if (length >= bytes || length >= sizeof key)
        return err_set(err, ERR_INTERNAL, "plan: \"%.60s\" is no KEY=VALUE", line);
    memcpy(key, line, length);
    key[length] = 0;
    const char *name = put_groups(before[0] ? before : NULL, key, out, &depth, &failed);
    const char *value = line + length + 1;
    size_t rest = bytes - length - 1;
    bool list = memchr(value, ',', rest) != NULL;
    failed = failed || text_printf(out, "%*s%s: %s%.*s%s\n", 2 * depth, "", name, list ? "[" : "",
                                   (int)rest, value, list ? "]" : "") != 0;
    memcpy(before, key, sizeof key);
    return failed ? err_set(err, ERR_MEMORY, "no memory for a configuration") : 0;
}

static bool same_group(const char *a, const char *b) {
    size_t length = strcspn(a, ".=");
    return strcspn(b, ".=") == length && strncmp(a, b, length) == 0;
}

static const char *next_line(const char *line) {
    line += strcspn(line, "\n");
    return line + (*line == '\n');
}

// A group stands where its first key does.
int emit_yaml(const char *lines, struct text *out, struct err *err) {
    char before[128] = "";
    for (const char *first = lines; *first; first = next_line(first)) {
        bool seen = false;
        for (const char *line = lines; line < first && !seen; line = next_line(line))
            seen = same_group(line, first);
        for (const char *line = first; *line && !seen; line = next_line(line))
            if (same_group(line, first) &&
                put_line(line, strcspn(line, "\n"), before, out, err) != 0)
                return -1;
    }
    return 0;
}

// ---- the head

static const char digest_word[] = "# plan-digest: ", figures_word[] = "# plan-figures: ";

int emit_head(const struct emit_plan *plan, const char *about, const char *start,
              struct text *out) {
    return text_printf(out,
                       "# Written by weft plan: %s.\n# %s\n"
                       "%s%016" PRIx64 "\n%sranks=%d step_seconds=%.9g tokens_per_second=%.9g "
                       "memory_bytes=%.0f mfu_full=%.6g\n",
                       about, start, digest_word, plan->digest, figures_word, plan->ranks,
                       plan->step_seconds, plan->tokens_per_second, plan->memory_bytes,
                       plan->mfu_full);
}

int emit_read_head(const char *text, const char *name, struct emit_plan *out, struct err *err) {
    struct emit_plan plan = {0};
    bool digest = false, figures = false;
    for (const char *line = text; *line == '#'; line += line[0] == '\n') {
        if (strncmp(line, digest_word, sizeof digest_word - 1) == 0)
            digest = sscanf(line + sizeof digest_word - 1, "%16" SCNx64, &plan.digest) == 1;
        if (strncmp(line, figures_word, sizeof figures_word - 1) == 0)
            figures = sscanf(line + sizeof figures_word - 1,
                             "ranks=%d step_seconds=%lf tokens_per_second=%lf memory_bytes=%lf "
                             "mfu_full=%lf",
                             &plan.ranks, &plan.step_seconds, &plan.tokens_per_second,
                             &plan.memory_bytes, &plan.mfu_full) == 5;
        line += strcspn(line, "\n");
    }
    if (!digest && !figures) return 1;
    if (!digest || !figures)
        return err_set(err, ERR_DATA,
                       "%s: the head that weft plan wrote is damaged: expected a line \"%s\" with "
                       "16 hexadecimal digits and a line \"%s\" with five figures",
                       name, digest_word, figures_word);
    *out = plan;
    return 0;
}
