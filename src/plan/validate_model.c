// The model that a published row was measured with. See validate.h.
#include "model/families.h"
#include "plan/validate_parts.h"
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

// Public shapes that rows name without giving them. `begin` is what the name begins with, letters
// and digits only; `size` is a word of it ("8b"), "" for any.
static const struct alike {
    const char *begin, *size, *preset;
} alike[] = {
    {"llama2", "7b", "llama2-7b"},       {"llama2", "13b", "llama2-13b"},
    {"llama2", "70b", "llama2-70b"},     {"llama32", "1b", "llama3.2-1b"},
    {"llama32", "3b", "llama3.2-3b"},    {"llama", "8b", "llama3-8b"},
    {"llama", "70b", "llama3-70b"},      {"llama", "405b", "llama3.1-405b"},
    {"deepseekv3", "", "deepseek-v3"},   {"deepseekv2lite", "", "deepseek-v2-lite"},
    {"deepseekv2", "", "deepseek-v2"},   {"kimik2", "", "deepseek-v3"},
    {"mixtral", "8x7b", "mixtral-8x7b"}, {"mixtral", "8x22b", "mixtral-8x22b"},
    {"qwen3", "30b", "qwen3-30b-a3b"},   {"qwen3", "235b", "qwen3-235b-a22b"},
    {"smollm", "1.7b", "smollm2-1.7b"},  {"gpt3", "1.3b", "gpt3-1.3b"},
    {"gpt3", "175b", "gpt3-175b"},
};
enum { GPT_PLAIN, GPT_BARE, LLAMA_LIKE }; // BARE: no biases, a head of its own
static const struct shape {
    const char *begin, *size;
    int kind, layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
    int experts, top_k, expert_ffn, shared_ffn;
} shapes[] = {
    // one shared expert; experts in every second layer of Maverick (Hugging Face config)
    {"llama4", "maverick", LLAMA_LIKE, 48, 5120, 40, 8, 128, 16384, 202048, 128, 1, 8192, 8192},
    {"llama4", "scout", LLAMA_LIKE, 48, 5120, 40, 8, 128, 16384, 202048, 16, 1, 8192, 8192},
    // xai-org/grok-1: two of eight experts, GeGLU
    {"grok1", "", LLAMA_LIKE, 64, 6144, 48, 8, 128, 32768, 131072, 8, 2, 32768, 0},
    {"gptoss", "120b", LLAMA_LIKE, 36, 2880, 64, 8, 64, 2880, 201088, 128, 4, 2880, 0},
    {"gptoss", "20b", LLAMA_LIKE, 24, 2880, 64, 8, 64, 2880, 201088, 32, 4, 2880, 0},
    // Dao-AILab/flash-attention: gpt3-2.7B-hdim128
    {"gpt3", "2.7b", GPT_PLAIN, 32, 2560, 20, 20, 128, 10240, 50257, 0, 0, 0, 0},
    // NeMo's recipes of these names; the printed TFLOP per token agrees with each
    {"gpt3", "5b", GPT_PLAIN, 24, 4096, 32, 32, 128, 16384, 51200, 0, 0, 0, 0},
    {"gpt3", "20b", GPT_PLAIN, 44, 6144, 48, 48, 128, 24576, 51200, 0, 0, 0, 0},
    {"opt", "175b", GPT_PLAIN, 96, 12288, 96, 96, 128, 49152, 50272, 0, 0, 0, 0},
    // squared ReLU between two matrices, no biases, a head of its own
    {"nemotron", "8b", GPT_BARE, 32, 4096, 32, 32, 128, 16384, 256000, 0, 0, 0, 0},
    {"nemotron", "15b", GPT_BARE, 32, 6144, 48, 8, 128, 24576, 256000, 0, 0, 0, 0},
    {"nemotron", "22b", GPT_BARE, 40, 6144, 48, 48, 128, 24576, 256000, 0, 0, 0, 0},
    {"nemotron", "340b", GPT_BARE, 96, 18432, 96, 8, 192, 73728, 256000, 0, 0, 0, 0},
};

// Kinds that no description of this program holds.
static const struct {
    const char *begin, *why;
} beyond[] = {
    {"nemotronh", "layers of state-space models"},
    {"nemotronnano", "layers of state-space models"},
    {"nemotron3nano", "layers of state-space models"},
    {"qwen3next", "layers of linear attention"},
    {"nemotron3super", "layers of state-space models"},
    {"nemotron3ultra", "layers of state-space models"},
    {"qwen35", "layers of linear attention"},
    {"qwen3vl", "a vision encoder"},
    {"qwen25vl", "a vision encoder"},
    {"mamba", "layers of state-space models"},
    {"wan", "a diffusion model"},
    {"flux", "a diffusion model"},
    {"dit", "a diffusion model"},
    {"t5", "an encoder"},
    {"bert", "an encoder"},
    {"llava", "a vision encoder"},
};

// Letters and digits of a name, small. Words end where something else stands; a point stays in a
// word.
static void squash(const char *name, char *out, size_t bytes) {
    size_t n = 0;
    for (; *name && n + 1 < bytes; name++)
        if (isalnum((unsigned char)*name)) out[n++] = (char)tolower((unsigned char)*name);
    out[n] = 0;
}
static bool has_word(const char *name, const char *word) {
    size_t length = strlen(word);
    if (length == 0) return true;
    for (const char *at = name; *at;) {
        size_t n = 0;
        while (isalnum((unsigned char)at[n]) || at[n] == '.') n++;
        if (n == length && strncasecmp(at, word, n) == 0) return true;
        at += n;
        while (*at && !isalnum((unsigned char)*at)) at++;
    }
    return false;
}
static bool named(const char *name, const char *begin, const char *size) {
    char plain[96];
    squash(name, plain, sizeof plain);
    return published_begins(plain, begin) && has_word(name, size);
}

static void kind_defaults(struct model_config *c, int kind) {
    model_family_defaults(kind == LLAMA_LIKE ? FAMILY_LLAMA : FAMILY_GPT2, c);
    if (kind != GPT_BARE) return;
    c->qkv_bias = c->out_bias = c->mlp_bias = c->tied_head = false;
}

static int take(int given, int fallback) {
    return given > 0 ? given : fallback;
}

static void from_shape(const struct shape *s, struct model_config *c) {
    kind_defaults(c, s->kind);
    c->layers = s->layers, c->hidden = s->hidden, c->heads = s->heads, c->kv_heads = s->kv_heads;
    c->head_dim = s->head_dim, c->ffn = s->ffn, c->vocab = s->vocab, c->experts = s->experts;
    c->top_k = s->top_k, c->expert_ffn = s->expert_ffn, c->shared_ffn = s->shared_ffn;
    c->norm_top_k = s->experts > 0;
    if (strcmp(s->size, "maverick") == 0)
        for (int i = 0; i < c->layers; i += 2) c->layer_dense[i] = true;
}

// 1: found, 0: the name says nothing.
static int from_name(const char *name, struct model_config *c, struct err *err) {
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        if (named(name, shapes[i].begin, shapes[i].size)) return from_shape(&shapes[i], c), 1;
    for (size_t i = 0; i < sizeof alike / sizeof alike[0]; i++) {
        if (!named(name, alike[i].begin, alike[i].size)) continue;
        if (model_preset(alike[i].preset, c, err) != 0) return -1;
        if (published_begins(alike[i].begin, "kimi")) // moonshotai/Kimi-K2
            c->heads = c->kv_heads = 64, c->experts = 384, c->vocab = 163840;
        return 1;
    }
    return 0;
}

// Without a name that says more: rows of GPT kind print no kv_heads and an MLP of 4 hidden.
static int kind_of(const struct published *row) {
    static const char *const llamas[] = {"llama", "nanotron", "qwen", "mistral", "smollm", "olmo"};
    char plain[96];
    squash(row->model, plain, sizeof plain);
    for (size_t i = 0; i < sizeof llamas / sizeof llamas[0]; i++)
        if (strstr(plain, llamas[i])) return LLAMA_LIKE;
    if (published_begins(plain, "mpt")) return GPT_BARE;
    if (strstr(plain, "gpt") || published_begins(plain, "opt") || strstr(plain, "bloom"))
        return GPT_PLAIN;
    bool narrow = row->ffn > 0 && row->hidden > 0 && row->ffn != 4 * row->hidden;
    return row->kv_heads > 0 || narrow || row->experts > 1 ? LLAMA_LIKE : GPT_PLAIN;
}

// BigScience's chronicle: its runs at a width of 14400, and the one at 13824 beside them, had 96
// heads, later ones 64. Elsewhere heads of 128, or the widest below it that divides the width.
static int default_heads(const struct published *row) {
    if (published_begins(row->source, "bigscience"))
        return row->hidden == 14400 || row->hidden == 13824 ? 96 : 64;
    for (int wide = 128; wide >= 8; wide -= 8)
        if (row->hidden % wide == 0) return row->hidden / wide;
    return 1;
}

static int from_columns(const struct published *row, struct model_config *c, struct err *err) {
    kind_defaults(c, kind_of(row));
    if (row->hidden < 1)
        return err_set(err, ERR_DATA, "the model's width is not given and its name is not known");
    c->hidden = row->hidden;
    c->heads = take(row->heads, default_heads(row));
    if (c->hidden % c->heads != 0)
        return err_set(err, ERR_DATA, "%d heads do not divide the model's width of %d", c->heads,
                       c->hidden);
    c->head_dim = c->hidden / c->heads;
    c->kv_heads = take(row->kv_heads, c->heads);
    c->ffn = take(row->ffn,
                  c->family == FAMILY_GPT2 ? 4 * c->hidden : (8 * c->hidden / 3 + 255) / 256 * 256);
    c->layers = row->layers;
    if (published_begins(row->source, "nanotron"))
        c->tied_head = c->hidden <= 3072;                         // its scaling script
    if (published_begins(row->model, "MPT")) c->tied_head = true; // llm-foundry's MPT
    if (row->experts > 1) {
        c->experts = row->experts;
        c->top_k = take(row->top_k, 2);
        c->expert_ffn = c->ffn;
        c->norm_top_k = true;
    }
    return 0;
}

static void override(const struct published *row, struct model_config *c) {
    int head_dim = c->head_dim;
    c->layers = take(row->layers, c->layers);
    c->kv_heads = take(row->kv_heads, c->kv_heads);
    c->ffn = take(row->ffn, c->ffn);
    if (row->hidden > 0 && row->hidden != c->hidden) {
        c->hidden = row->hidden;
        head_dim = 0;
    }
    if (row->heads > 0 && row->heads != c->heads) {
        if (c->kv_heads == c->heads && row->kv_heads < 1) c->kv_heads = row->heads;
        c->heads = row->heads;
        head_dim = c->kv_lora_rank ? head_dim : 0;
    }
    if (!head_dim) c->head_dim = c->hidden / c->heads;
    if (c->experts > 0) {
        c->experts = take(row->experts, c->experts);
        c->top_k = take(row->top_k, c->top_k);
    }
}

// Where a size is printed instead of a depth.
static int layers_of(const struct published *row, const struct model_config *c) {
    if (!(row->params_billions > 0)) return 0;
    double layer =
        c->family == FAMILY_GPT2
            ? 12.0 * c->hidden * c->hidden
            : (2.0 * c->hidden * c->head_dim * (c->heads + c->kv_heads) + 3.0 * c->hidden * c->ffn);
    double tables = (double)c->vocab * c->hidden * (c->tied_head ? 1 : 2);
    return (int)lround((row->params_billions * 1e9 - tables) / layer);
}

static const char *why_beyond(const char *name) {
    char plain[96];
    squash(name, plain, sizeof plain);
    for (size_t i = 0; i < sizeof beyond / sizeof beyond[0]; i++)
        if (published_begins(plain, beyond[i].begin)) return beyond[i].why;
    return NULL;
}

int published_model(const struct published *row, const struct publisher *publisher,
                    struct model_config *out, struct err *err) {
    struct model_config c;
    const char *why = why_beyond(row->model);
    if (why) return err_set(err, ERR_DATA, "%s has %s", row->model, why);
    int known = from_name(row->model, &c, err);
    if (known < 0) return -1;
    if (known)
        override(row, &c);
    else if (from_columns(row, &c, err) != 0)
        return -1;
    int vocab = publisher->vocab ? publisher->vocab : c.family == FAMILY_GPT2 ? 50257 : 32000;
    c.vocab = take(row->vocab, known ? c.vocab : vocab);
    if (c.layers < 1) c.layers = layers_of(row, &c);
    if (c.layers < 1) return err_set(err, ERR_DATA, "the number of layers is not given");
    c.context = take(row->context, publisher->context);
    if (c.context < 1) return err_set(err, ERR_DATA, "the sequence length is not given");
    if (model_config_check(&c, err) != 0) return -1;
    *out = c;
    return 0;
}
