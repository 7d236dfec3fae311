// The model that a published row was measured with. See validate.h.
#include "model/families.h"
#include "plan/validate.h"
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

// Public shapes that rows name without giving them. `begin` is what the name begins with, letters
// and digits only; `size` is a word of it ("8b"), "" for any. Where `preset` is NULL the numbers
// hold.
enum { GPT_PLAIN, GPT_BARE, LLAMA_LIKE }; // BARE: no biases, a head of its own
static const struct known {
    const char *begin, *size, *preset;
    int kind, layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
    int experts, top_k, expert_ffn, shared_ffn;
} known[] = {
    {.begin = "llama2", .size = "7b", .preset = "llama2-7b"},
    {.begin = "llama2", .size = "13b", .preset = "llama2-13b"},
    {.begin = "llama2", .size = "70b", .preset = "llama2-70b"},
    {.begin = "llama32", .size = "1b", .preset = "llama3.2-1b"},
    {.begin = "llama32", .size = "3b", .preset = "llama3.2-3b"},
    // 128 experts every second layer, one shared expert (Hugging Face config)
    {.begin = "llama4",
     .size = "maverick",
     .kind = LLAMA_LIKE,
     .layers = 48,
     .hidden = 5120,
     .heads = 40,
     .kv_heads = 8,
     .head_dim = 128,
     .ffn = 16384,
     .vocab = 202048,
     .experts = 128,
     .top_k = 1,
     .expert_ffn = 8192,
     .shared_ffn = 8192},
    {.begin = "llama4",
     .size = "scout",
     .kind = LLAMA_LIKE,
     .layers = 48,
     .hidden = 5120,
     .heads = 40,
     .kv_heads = 8,
     .head_dim = 128,
     .ffn = 16384,
     .vocab = 202048,
     .experts = 16,
     .top_k = 1,
     .expert_ffn = 8192,
     .shared_ffn = 8192},
    {.begin = "llama", .size = "8b", .preset = "llama3-8b"},
    {.begin = "llama", .size = "70b", .preset = "llama3-70b"},
    {.begin = "llama", .size = "405b", .preset = "llama3.1-405b"},
    {.begin = "deepseekv3", .size = "", .preset = "deepseek-v3"},
    {.begin = "deepseekv2lite", .size = "", .preset = "deepseek-v2-lite"},
    {.begin = "deepseekv2", .size = "", .preset = "deepseek-v2"},
    {.begin = "mixtral", .size = "8x7b", .preset = "mixtral-8x7b"},
    {.begin = "mixtral", .size = "8x22b", .preset = "mixtral-8x22b"},
    {.begin = "qwen3", .size = "30b", .preset = "qwen3-30b-a3b"},
    {.begin = "qwen3", .size = "235b", .preset = "qwen3-235b-a22b"},
    {.begin = "smollm", .size = "1.7b", .preset = "smollm2-1.7b"},
    // xai-org/grok-1: two of eight experts, GeGLU of inner width 32768
    {.begin = "grok1",
     .size = "",
     .kind = LLAMA_LIKE,
     .layers = 64,
     .hidden = 6144,
     .heads = 48,
     .kv_heads = 8,
     .head_dim = 128,
     .ffn = 32768,
     .vocab = 131072,
     .experts = 8,
     .top_k = 2,
     .expert_ffn = 32768},
    // openai/gpt-oss-120b
    {.begin = "gptoss",
     .size = "120b",
     .kind = LLAMA_LIKE,
     .layers = 36,
     .hidden = 2880,
     .heads = 64,
     .kv_heads = 8,
     .head_dim = 64,
     .ffn = 2880,
     .vocab = 201088,
     .experts = 128,
     .top_k = 4,
     .expert_ffn = 2880},
    {.begin = "gptoss",
     .size = "20b",
     .kind = LLAMA_LIKE,
     .layers = 24,
     .hidden = 2880,
     .heads = 64,
     .kv_heads = 8,
     .head_dim = 64,
     .ffn = 2880,
     .vocab = 201088,
     .experts = 32,
     .top_k = 4,
     .expert_ffn = 2880},
    // NeMo's recipes of the same names; the printed TFLOP per token agrees with each
    {.begin = "gpt3", .size = "1.3b", .preset = "gpt3-1.3b"},
    {.begin = "gpt3",
     .size = "2.7b",
     .kind = GPT_PLAIN,
     .layers = 32,
     .hidden = 2560,
     .heads = 32,
     .kv_heads = 32,
     .head_dim = 80,
     .ffn = 10240,
     .vocab = 50257},
    {.begin = "gpt3",
     .size = "5b",
     .kind = GPT_PLAIN,
     .layers = 24,
     .hidden = 4096,
     .heads = 32,
     .kv_heads = 32,
     .head_dim = 128,
     .ffn = 16384,
     .vocab = 51200},
    {.begin = "gpt3",
     .size = "20b",
     .kind = GPT_PLAIN,
     .layers = 44,
     .hidden = 6144,
     .heads = 48,
     .kv_heads = 48,
     .head_dim = 128,
     .ffn = 24576,
     .vocab = 51200},
    {.begin = "gpt3", .size = "175b", .preset = "gpt3-175b"},
    {.begin = "opt",
     .size = "175b",
     .kind = GPT_PLAIN,
     .layers = 96,
     .hidden = 12288,
     .heads = 96,
     .kv_heads = 96,
     .head_dim = 128,
     .ffn = 49152,
     .vocab = 50272},
    // Nemotron: squared ReLU between two matrices, no biases, a head of its own
    {.begin = "nemotron",
     .size = "8b",
     .kind = GPT_BARE,
     .layers = 32,
     .hidden = 4096,
     .heads = 32,
     .kv_heads = 32,
     .head_dim = 128,
     .ffn = 16384,
     .vocab = 256000},
    {.begin = "nemotron",
     .size = "15b",
     .kind = GPT_BARE,
     .layers = 32,
     .hidden = 6144,
     .heads = 48,
     .kv_heads = 8,
     .head_dim = 128,
     .ffn = 24576,
     .vocab = 256000},
    {.begin = "nemotron",
     .size = "22b",
     .kind = GPT_BARE,
     .layers = 40,
     .hidden = 6144,
     .heads = 48,
     .kv_heads = 48,
     .head_dim = 128,
     .ffn = 24576,
     .vocab = 256000},
    {.begin = "nemotron",
     .size = "340b",
     .kind = GPT_BARE,
     .layers = 96,
     .hidden = 18432,
     .heads = 96,
     .kv_heads = 8,
     .head_dim = 192,
     .ffn = 73728,
     .vocab = 256000},
    // moonshotai/Kimi-K2: DeepSeek-V3 with 64 heads and 384 experts
    {.begin = "kimik2",
     .size = "",
     .preset = "deepseek-v3",
     .layers = 61,
     .heads = 64,
     .kv_heads = 64,
     .vocab = 163840,
     .experts = 384,
     .top_k = 8},
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
static bool begins(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

static const struct known *find_known(const char *name) {
    char plain[96];
    squash(name, plain, sizeof plain);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (begins(plain, known[i].begin) && has_word(name, known[i].size)) return &known[i];
    return NULL;
}

static void kind_defaults(struct model_config *c, int kind) {
    model_family_defaults(kind == LLAMA_LIKE ? FAMILY_LLAMA : FAMILY_GPT2, c);
    if (kind != GPT_BARE) return;
    c->qkv_bias = c->out_bias = c->mlp_bias = c->tied_head = false;
}

static int take(int given, int fallback) {
    return given > 0 ? given : fallback;
}

static int from_known(const struct known *k, struct model_config *c, struct err *err) {
    if (k->preset) {
        if (model_preset(k->preset, c, err) != 0) return -1;
    } else {
        kind_defaults(c, k->kind);
    }
    c->layers = take(k->layers, c->layers), c->hidden = take(k->hidden, c->hidden);
    c->heads = take(k->heads, c->heads), c->kv_heads = take(k->kv_heads, c->kv_heads);
    c->head_dim = take(k->head_dim, c->head_dim), c->ffn = take(k->ffn, c->ffn);
    c->vocab = take(k->vocab, c->vocab), c->experts = take(k->experts, c->experts);
    c->top_k = take(k->top_k, c->top_k), c->expert_ffn = take(k->expert_ffn, c->expert_ffn);
    c->shared_ffn = take(k->shared_ffn, c->shared_ffn);
    if (k->kind == LLAMA_LIKE && k->experts) c->norm_top_k = true;
    if (strcmp(k->size, "maverick") == 0)
        for (int i = 0; i < c->layers; i += 2) c->layer_dense[i] = true;
    return 0;
}

// Without a name that says more: rows of GPT kind print no kv_heads and an MLP of 4 hidden.
static int kind_of(const struct published *row) {
    static const char *const llamas[] = {"llama", "nanotron", "qwen", "mistral", "smollm", "olmo"};
    char plain[96];
    squash(row->model, plain, sizeof plain);
    for (size_t i = 0; i < sizeof llamas / sizeof llamas[0]; i++)
        if (strstr(plain, llamas[i])) return LLAMA_LIKE;
    if (begins(plain, "mpt")) return GPT_BARE;
    if (strstr(plain, "gpt") || begins(plain, "opt") || strstr(plain, "bloom")) return GPT_PLAIN;
    bool narrow = row->ffn > 0 && row->hidden > 0 && row->ffn != 4 * row->hidden;
    return row->kv_heads > 0 || narrow || row->experts > 1 ? LLAMA_LIKE : GPT_PLAIN;
}

// BigScience's chronicle: its runs at a width of 14400, and the one at 13824 beside them, had 96
// heads, later ones 64. Elsewhere heads of 128, or the widest below it that divides the width.
static int default_heads(const struct published *row) {
    if (begins(row->source, "bigscience"))
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
    if (begins(row->source, "nanotron")) c->tied_head = c->hidden <= 3072; // its scaling script
    if (begins(row->model, "MPT")) c->tied_head = true;                    // llm-foundry's MPT
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
        if (begins(plain, beyond[i].begin)) return beyond[i].why;
    return NULL;
}

int published_model(const struct published *row, const struct publisher *publisher,
                    struct model_config *out, struct err *err) {
    struct model_config c;
    const struct known *k = find_known(row->model);
    const char *why = why_beyond(row->model);
    if (why) return err_set(err, ERR_DATA, "%s has %s", row->model, why);
    if (k) {
        if (from_known(k, &c, err) != 0) return -1;
        override(row, &c);
    } else if (from_columns(row, &c, err) != 0) {
        return -1;
    }
    int vocab = publisher->vocab ? publisher->vocab : c.family == FAMILY_GPT2 ? 50257 : 32000;
    c.vocab = take(row->vocab, k && c.vocab ? c.vocab : vocab);
    if (c.layers < 1) c.layers = layers_of(row, &c);
    if (c.layers < 1) return err_set(err, ERR_DATA, "the number of layers is not given");
    c.context = take(row->context, publisher->context);
    if (c.context < 1) return err_set(err, ERR_DATA, "the sequence length is not given");
    if (model_config_check(&c, err) != 0) return -1;
    *out = c;
    return 0;
}
