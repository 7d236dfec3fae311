// Table of public model shapes; sizes as their authors published them. See families.h.
#include "model/families.h"
#include "base/text.h"
#include <stdio.h>
#include <string.h>

void model_family_defaults(enum model_family family, struct model_config *out) {
    bool gpt2 = family == FAMILY_GPT2;
    *out = (struct model_config){.family = family, .init_std = 0.02, .bos_id = -1, .eos_id = -1};
    snprintf(out->variant, sizeof out->variant, "%s", gpt2 ? "gpt2" : "llama");
    out->norm = gpt2 ? NORM_LAYER : NORM_RMS;
    out->norm_eps = 1e-5;
    out->activation = gpt2 ? ACTIVATION_GELU_TANH : ACTIVATION_SWIGLU;
    out->learned_positions = out->qkv_bias = out->out_bias = out->mlp_bias = out->tied_head = gpt2;
    out->rope.theta = 10000;
    out->rope.truncate = true;
}

enum kind { GPT2, LLAMA, LLAMA31, MISTRAL, QWEN2, QWEN3, OLMO2, MIXTRAL, QWEN3_MOE, DEEPSEEK };

static const struct preset {
    const char *name;
    enum kind kind;
    int layers, hidden, heads, kv_heads, head_dim, ffn, vocab, context;
    double theta, eps;
    bool tied;
    int bos, eos;
    double factor; // of Llama 3.1 kind scaling
} presets[] = {
    {"gpt2-124m", GPT2, 12, 768, 12, 12, 64, 3072, 50257, 1024, 0, 1e-5, true, 50256, 50256, 0},
    {"gpt2-350m", GPT2, 24, 1024, 16, 16, 64, 4096, 50257, 1024, 0, 1e-5, true, 50256, 50256, 0},
    {"gpt2-774m", GPT2, 36, 1280, 20, 20, 64, 5120, 50257, 1024, 0, 1e-5, true, 50256, 50256, 0},
    {"gpt2-1558m", GPT2, 48, 1600, 25, 25, 64, 6400, 50257, 1024, 0, 1e-5, true, 50256, 50256, 0},
    {"gpt3-1.3b", GPT2, 24, 2048, 16, 16, 128, 8192, 50257, 2048, 0, 1e-5, true, 50256, 50256, 0},
    {"gpt3-6.7b", GPT2, 32, 4096, 32, 32, 128, 16384, 50257, 2048, 0, 1e-5, true, 50256, 50256, 0},
    {"gpt3-13b", GPT2, 40, 5120, 40, 40, 128, 20480, 50257, 2048, 0, 1e-5, true, 50256, 50256, 0},
    {"gpt3-175b", GPT2, 96, 12288, 96, 96, 128, 49152, 50257, 2048, 0, 1e-5, true, 50256, 50256, 0},
    {"mt-nlg-530b", GPT2, 105, 20480, 128, 128, 160, 81920, 50257, 2048, 0, 1e-5, true, 50256,
     50256, 0},
    {"llama-15m", LLAMA, 6, 288, 6, 6, 48, 768, 32000, 256, 1e4, 1e-5, true, 1, 2, 0},
    {"llama-42m", LLAMA, 8, 512, 8, 8, 64, 1376, 32000, 1024, 1e4, 1e-5, true, 1, 2, 0},
    {"llama-110m", LLAMA, 12, 768, 12, 12, 64, 2048, 32000, 1024, 1e4, 1e-5, true, 1, 2, 0},
    {"llama2-7b", LLAMA, 32, 4096, 32, 32, 128, 11008, 32000, 4096, 1e4, 1e-5, false, 1, 2, 0},
    {"llama2-13b", LLAMA, 40, 5120, 40, 40, 128, 13824, 32000, 4096, 1e4, 1e-5, false, 1, 2, 0},
    {"llama2-70b", LLAMA, 80, 8192, 64, 8, 128, 28672, 32000, 4096, 1e4, 1e-5, false, 1, 2, 0},
    {"llama3-8b", LLAMA, 32, 4096, 32, 8, 128, 14336, 128256, 8192, 5e5, 1e-5, false, 128000,
     128001, 0},
    {"llama3-70b", LLAMA, 80, 8192, 64, 8, 128, 28672, 128256, 8192, 5e5, 1e-5, false, 128000,
     128001, 0},
    {"llama3.1-8b", LLAMA31, 32, 4096, 32, 8, 128, 14336, 128256, 131072, 5e5, 1e-5, false, 128000,
     128001, 8},
    {"llama3.1-70b", LLAMA31, 80, 8192, 64, 8, 128, 28672, 128256, 131072, 5e5, 1e-5, false, 128000,
     128001, 8},
    {"llama3.1-405b", LLAMA31, 126, 16384, 128, 8, 128, 53248, 128256, 131072, 5e5, 1e-5, false,
     128000, 128001, 8},
    {"llama3-405b", LLAMA31, 126, 16384, 128, 8, 128, 53248, 128256, 8192, 5e5, 1e-5, false, 128000,
     128001, 8}, // the paper's name for it, at the context of most of its training
    {"llama3.2-1b", LLAMA31, 16, 2048, 32, 8, 64, 8192, 128256, 131072, 5e5, 1e-5, true, 128000,
     128001, 32},
    {"llama3.2-3b", LLAMA31, 28, 3072, 24, 8, 128, 8192, 128256, 131072, 5e5, 1e-5, true, 128000,
     128001, 32},
    {"mistral-7b", MISTRAL, 32, 4096, 32, 8, 128, 14336, 32000, 32768, 1e4, 1e-5, false, 1, 2, 0},
    {"qwen2.5-0.5b", QWEN2, 24, 896, 14, 2, 64, 4864, 151936, 32768, 1e6, 1e-6, true, 151643,
     151643, 0},
    {"qwen2.5-1.5b", QWEN2, 28, 1536, 12, 2, 128, 8960, 151936, 131072, 1e6, 1e-6, true, 151643,
     151643, 0},
    {"qwen2.5-7b", QWEN2, 28, 3584, 28, 4, 128, 18944, 152064, 131072, 1e6, 1e-6, false, 151643,
     151643, 0},
    {"qwen2.5-14b", QWEN2, 48, 5120, 40, 8, 128, 13824, 152064, 131072, 1e6, 1e-5, false, 151643,
     151643, 0},
    {"qwen2.5-32b", QWEN2, 64, 5120, 40, 8, 128, 27648, 152064, 131072, 1e6, 1e-5, false, 151643,
     151643, 0},
    {"qwen2.5-72b", QWEN2, 80, 8192, 64, 8, 128, 29568, 152064, 131072, 1e6, 1e-5, false, 151643,
     151643, 0},
    {"qwen3-0.6b", QWEN3, 28, 1024, 16, 8, 128, 3072, 151936, 32768, 1e6, 1e-6, true, 151643,
     151643, 0},
    {"qwen3-1.7b", QWEN3, 28, 2048, 16, 8, 128, 6144, 151936, 32768, 1e6, 1e-6, true, 151643,
     151643, 0},
    {"qwen3-4b", QWEN3, 36, 2560, 32, 8, 128, 9728, 151936, 32768, 1e6, 1e-6, true, 151643, 151643,
     0},
    {"qwen3-8b", QWEN3, 36, 4096, 32, 8, 128, 12288, 151936, 32768, 1e6, 1e-6, false, 151643,
     151643, 0},
    {"qwen3-14b", QWEN3, 40, 5120, 40, 8, 128, 17408, 151936, 32768, 1e6, 1e-6, false, 151643,
     151643, 0},
    {"qwen3-32b", QWEN3, 64, 5120, 64, 8, 128, 25600, 151936, 32768, 1e6, 1e-6, false, 151643,
     151643, 0},
    {"smollm2-135m", LLAMA, 30, 576, 9, 3, 64, 1536, 49152, 8192, 1e5, 1e-5, true, 0, 0, 0},
    {"smollm2-360m", LLAMA, 32, 960, 15, 5, 64, 2560, 49152, 8192, 1e5, 1e-5, true, 0, 0, 0},
    {"smollm2-1.7b", LLAMA, 24, 2048, 32, 32, 64, 8192, 49152, 8192, 1.3e5, 1e-5, true, 0, 0, 0},
    {"olmo2-1b", OLMO2, 16, 2048, 16, 16, 128, 8192, 100352, 4096, 5e5, 1e-6, false, 100257, 100257,
     0},
    {"olmo2-7b", OLMO2, 32, 4096, 32, 32, 128, 11008, 100352, 4096, 5e5, 1e-6, false, 100257,
     100257, 0},
    {"mixtral-8x7b", MIXTRAL, 32, 4096, 32, 8, 128, 14336, 32000, 32768, 1e6, 1e-5, false, 1, 2, 0},
    {"mixtral-8x22b", MIXTRAL, 56, 6144, 48, 8, 128, 16384, 32768, 65536, 1e6, 1e-5, false, 1, 2,
     0},
    {"qwen3-30b-a3b", QWEN3_MOE, 48, 2048, 32, 4, 128, 6144, 151936, 40960, 1e6, 1e-6, false,
     151643, 151645, 0},
    {"qwen3-235b-a22b", QWEN3_MOE, 94, 4096, 64, 4, 128, 12288, 151936, 40960, 1e6, 1e-6, false,
     151643, 151645, 0},
    {"deepseek-v2-lite", DEEPSEEK, 27, 2048, 16, 16, 192, 10944, 102400, 163840, 1e4, 1e-6, false,
     100000, 100001, 40},
    {"deepseek-v2", DEEPSEEK, 60, 5120, 128, 128, 192, 12288, 102400, 163840, 1e4, 1e-6, false,
     100000, 100001, 40},
    {"deepseek-v3", DEEPSEEK, 61, 7168, 128, 128, 192, 18432, 129280, 163840, 1e4, 1e-6, false, 0,
     1, 40},
};
static const struct preset_experts {
    const char *name;
    int experts, top_k, ffn;
    int shared, dense_layers, q_lora_rank; // DeepSeek: shared experts, first layers without any
} preset_experts[] = {
    {"mixtral-8x7b", 8, 2, 14336, 0, 0, 0},     {"mixtral-8x22b", 8, 2, 16384, 0, 0, 0},
    {"qwen3-30b-a3b", 128, 8, 768, 0, 0, 0},    {"qwen3-235b-a22b", 128, 8, 1536, 0, 0, 0},
    {"deepseek-v2-lite", 64, 6, 1408, 2, 1, 0}, {"deepseek-v2", 160, 6, 1536, 2, 1, 1536},
    {"deepseek-v3", 256, 8, 2048, 1, 3, 1536},
};
enum {
    PRESET_COUNT = sizeof presets / sizeof presets[0],
    MISTRAL_WINDOW = 4096,
    LLAMA31_ORIGINAL_CONTEXT = 8192,
    DEEPSEEK_ORIGINAL_CONTEXT = 4096,
    DEEPSEEK_KV_LATENT = 512,
    DEEPSEEK_ROTATED = 64,
    DEEPSEEK_VALUE = 128
};

const char *const *model_preset_names(size_t *count) {
    static const char *names[PRESET_COUNT + 1];
    for (int i = 0; i < PRESET_COUNT; i++) names[i] = presets[i].name;
    if (count) *count = PRESET_COUNT;
    return names;
}

static void set_experts(struct model_config *c, const struct preset *p) {
    for (size_t i = 0; i < sizeof preset_experts / sizeof preset_experts[0]; i++) {
        const struct preset_experts *e = &preset_experts[i];
        if (strcmp(e->name, p->name) != 0) continue;
        c->experts = e->experts;
        c->top_k = e->top_k;
        c->expert_ffn = e->ffn;
        c->shared_ffn = e->shared * e->ffn;
        c->q_lora_rank = e->q_lora_rank;
        for (int layer = 0; layer < e->dense_layers; layer++) c->layer_dense[layer] = true;
    }
    c->norm_top_k = true;
    c->aux_coefficient = p->kind == MIXTRAL ? 0.02 : 0.001;
    if (p->kind == QWEN3_MOE) c->qk_norm = QK_NORM_HEAD;
}

static void set_deepseek(struct model_config *c, const struct preset *p) {
    set_experts(c, p);
    c->kv_lora_rank = DEEPSEEK_KV_LATENT;
    c->qk_rope_head_dim = DEEPSEEK_ROTATED;
    c->v_head_dim = DEEPSEEK_VALUE;
    c->norm_top_k = strcmp(p->name, "deepseek-v3") == 0;
    c->rope.scaling = ROPE_YARN;
    c->rope.factor = p->factor;
    c->rope.beta_fast = 32;
    c->rope.beta_slow = 1;
    c->rope.attention_factor = 1;
    c->rope.original_context = DEEPSEEK_ORIGINAL_CONTEXT;
}

static void set_kind(struct model_config *c, const struct preset *p) {
    static const char *const variants[] = {"gpt2",  "llama", "llama",   "mistral",   "qwen2",
                                           "qwen3", "olmo2", "mixtral", "qwen3_moe", "deepseek_v3"};
    model_family_defaults(p->kind == GPT2 ? FAMILY_GPT2 : FAMILY_LLAMA, c);
    snprintf(c->variant, sizeof c->variant, "%s", variants[p->kind]);
    switch (p->kind) {
    case GPT2:
    case LLAMA:
        break;
    case LLAMA31:
        c->rope.scaling = ROPE_LLAMA3;
        c->rope.factor = p->factor;
        c->rope.low_freq_factor = 1;
        c->rope.high_freq_factor = 4;
        c->rope.original_context = LLAMA31_ORIGINAL_CONTEXT;
        break;
    case MISTRAL:
        for (int i = 0; i < p->layers; i++) c->layer_window[i] = MISTRAL_WINDOW;
        break;
    case QWEN2:
        c->qkv_bias = true;
        break;
    case MIXTRAL:
    case QWEN3_MOE:
        set_experts(c, p);
        break;
    case DEEPSEEK:
        set_deepseek(c, p);
        if (!c->norm_top_k) snprintf(c->variant, sizeof c->variant, "deepseek_v2");
        break;
    case QWEN3:
        c->qk_norm = QK_NORM_HEAD;
        break;
    case OLMO2:
        c->qk_norm = QK_NORM_FULL;
        c->norm_place = NORM_AFTER;
        break;
    }
}

int model_preset(const char *name, struct model_config *out, struct err *err) {
    for (int i = 0; i < PRESET_COUNT; i++) {
        const struct preset *p = &presets[i];
        if (strcmp(p->name, name) != 0) continue;
        struct model_config c;
        set_kind(&c, p);
        c.layers = p->layers, c.hidden = p->hidden, c.heads = p->heads, c.kv_heads = p->kv_heads;
        c.head_dim = p->head_dim, c.ffn = p->ffn, c.vocab = p->vocab, c.context = p->context;
        if (p->kind != GPT2) c.rope.theta = p->theta;
        c.norm_eps = p->eps;
        c.tied_head = p->tied;
        c.bos_id = p->bos;
        c.eos_id = p->eos;
        *out = c;
        return 0;
    }
    size_t count;
    const char *const *names = model_preset_names(&count);
    const char *nearest = text_nearest(name, names, count);
    return err_set(err, ERR_USAGE,
                   "unknown model preset \"%s\"%s%s%s; there are gpt2-124m, llama-15m, llama3-8b, "
                   "qwen3-0.6b, smollm2-135m and %d others",
                   name, nearest ? "; did you mean \"" : "", nearest ? nearest : "",
                   nearest ? "\"?" : "", PRESET_COUNT - 5);
}
