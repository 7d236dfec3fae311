// weft convert: models between formats, and the check of a model folder.
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf.h"
#include "checkpoint/hf_folder.h"
#include "cli/cli.h"
#include "cli/model_source.h"
#include "cli/options.h"
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char help[] =
    "usage: weft convert [options] FROM TO\n"
    "       weft convert --validate FOLDER\n"
    "\n"
    "FROM is a Hugging Face model folder, a run of weft (its newest checkpoint), or one checkpoint "
    "folder.\n"
    "TO is a folder (Hugging Face layout: config.json, safetensors, tokenizer files), or a file "
    "named *.gguf.\n"
    "\n"
    "  --dtype TYPE         f32, bf16 or f16; for GGUF also q8_0. Default: what FROM stores "
    "(checkpoints: f32)\n"
    "  --lossy              allow a cast that changes values; without it such a cast is refused "
    "with the counts\n"
    "  --max-shard-mb N     weights in files of at most N MB (10^6 bytes); default 5000\n"
    "  --store-tied-head    write the head of a tied model as a tensor of its own\n"
    "  --tokenizer PATH     tokenizer to go with the model; default: the one beside FROM\n"
    "  --name TEXT          general.name of a GGUF file; default: the name of FROM\n"
    "  --json               print the result as JSON\n"
    "  --validate FOLDER    check a model folder or a checkpoint: index and headers both ways, "
    "names, shapes, sizes,\n"
    "                       finite values, hashes\n";

struct request {
    const char *dtype, *tokenizer, *name, *validate;
    bool lossy, store_tied_head, json;
    int max_shard_mb;
    const char *from, *to;
};

static void print_result(const struct request *r, const char *type,
                         const struct hf_cast_counts *c) {
    if (r->json) {
        json_t *out = json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I}", "from", r->from, "to",
                                r->to, "dtype", type, "values", (json_int_t)c->values, "changed",
                                (json_int_t)c->changed, "became_inf", (json_int_t)c->became_inf,
                                "became_denormal", (json_int_t)c->became_denormal, "became_zero",
                                (json_int_t)c->became_zero);
        char *text = json_dumps(out, JSON_INDENT(1));
        printf("%s\n", text ? text : "{}");
        free(text);
        json_decref(out);
        return;
    }
    printf("%s: %" PRIu64 " values as %s; changed by the cast: %" PRIu64
           ", of which to Inf: %" PRIu64 ", to denormal numbers: %" PRIu64 ", to zero: %" PRIu64
           "\n",
           r->to, c->values, type, c->changed, c->became_inf, c->became_denormal, c->became_zero);
}

// --- whether a cast loses something ---

static bool widens(enum dtype from, enum dtype to) {
    return from == to || to == DTYPE_COUNT ||
           (to == DTYPE_F32 && (from == DTYPE_BF16 || from == DTYPE_F16));
}

static int count_cast(struct model_source *source, enum dtype type, struct hf_cast_counts *counts,
                      struct err *err) {
    if (source->hf) return hf_folder_count_cast(source->hf, type, counts, err);
    int64_t largest = 1;
    const struct model *model = source->model;
    for (int i = 0; i < model->param_count; i++)
        if (param_elements(&model->params[i]) > largest)
            largest = param_elements(&model->params[i]);
    float *values = malloc((size_t)largest * sizeof *values);
    if (!values) return err_set(err, ERR_MEMORY, "no memory for the largest parameter");
    int result = 0;
    for (int i = 0; i < model->param_count && result == 0; i++) {
        result = model_source_read(source, i, values, err);
        if (result == 0) hf_count_cast(values, param_elements(&model->params[i]), type, counts);
    }
    free(values);
    return result;
}

static int check_loss(const struct request *r, struct model_source *source, enum dtype from,
                      enum dtype type, struct err *err) {
    struct hf_cast_counts counts = {0};
    if (r->lossy || widens(from, type)) return 0;
    if (count_cast(source, type, &counts, err) != 0) return -1;
    if (counts.changed == 0) return 0;
    return err_set(err, ERR_USAGE,
                   "%s: the cast to %s changes %" PRIu64 " of %" PRIu64 " values (%" PRIu64
                   " become Inf, %" PRIu64 " denormal, %" PRIu64
                   " zero); add --lossy if that is wanted",
                   r->from, dtype_name(type), counts.changed, counts.values, counts.became_inf,
                   counts.became_denormal, counts.became_zero);
}

// --- targets ---

static int fill(void *context, int param, int64_t first_row, int64_t rows, float *out,
                struct err *err) {
    return model_source_read_rows(context, param, first_row, rows, out, err);
}

static const char *last_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

static int to_gguf(const struct request *r, struct model_source *source, struct err *err) {
    static const char *const names[] = {"f32", "f16", "bf16", "q8_0"};
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16,
                                       DTYPE_COUNT}; // q8_0 is asked for as such
    enum dtype from = source->hf ? hf_folder_dtype(source->hf) : DTYPE_F32;
    const char *wanted = r->dtype ? r->dtype : from == DTYPE_F64 ? "f32" : dtype_name(from);
    int type = 0;
    while (type < 4 && strcmp(names[type], wanted) != 0) type++;
    if (type == 4)
        return err_set(err, ERR_USAGE, "--dtype %.40s: expected f32, bf16, f16 or q8_0", wanted);
    if (check_loss(r, source, from, types[type], err) != 0) return -1;
    struct tokenizer *tok =
        cli_tokenizer(source->tokenizer, r->tokenizer, source->model->config.vocab, err);
    if (!tok) return -1;
    struct hf_cast_counts counts = {0};
    int result = gguf_write(r->to, r->name ? r->name : last_name(r->from), source->model, tok,
                            (enum gguf_type)type, fill, source, &counts, err);
    tokenizer_free(tok);
    if (result == 0) print_result(r, wanted, &counts);
    return result;
}

static int carry_tokenizer(const struct request *r, const struct model_source *source,
                           struct err *err) {
    if (!r->tokenizer && !source->tokenizer[0]) {
        fprintf(stderr,
                "no tokenizer beside %s; the folder is written without one (--tokenizer PATH gives "
                "one)\n",
                r->from);
        return 0;
    }
    const char *from = r->tokenizer ? r->tokenizer : source->tokenizer;
    if (file_is_folder(from)) return hf_folder_copy_tokenizer(from, r->to, err) < 0 ? -1 : 0;
    struct tokenizer *tok = tokenizer_load(from, err);
    if (!tok) return -1;
    int result = tokenizer_save_hf(tok, r->to, err);
    tokenizer_free(tok);
    return result;
}

// A bias of the choice of experts is part of what a run computes, and no type can hold it.
static int check_bias(const struct request *r, struct model_source *source, struct err *err) {
    const struct model_config *c = &source->model->config;
    float *bias = malloc(((size_t)c->experts + 1) * sizeof *bias);
    int found = bias ? 0 : err_set(err, ERR_MEMORY, "no memory for a bias");
    for (int l = 0; l < c->layers && found == 0; l++)
        found = model_source_expert_bias(source, l, bias, err);
    free(bias);
    if (found <= 0) return found;
    if (r->lossy) {
        fprintf(stderr, "%s: the bias of the choice of experts is left out\n", r->from);
        return 0;
    }
    return err_set(err, ERR_USAGE,
                   "%s: the run balanced its experts by a bias (moe.bias_rate), which Hugging Face "
                   "folders cannot hold; add --lossy to leave it out, which changes some choices",
                   r->from);
}

static int to_folder(const struct request *r, struct model_source *source, struct err *err) {
    struct hf_write_options options = {.type = source->hf ? DTYPE_COUNT : DTYPE_F32,
                                       .store_tied_head = r->store_tied_head,
                                       .max_shard_bytes = (uint64_t)r->max_shard_mb * 1000000};
    if (r->dtype &&
        (dtype_from_name(r->dtype, &options.type) != 0 ||
         (options.type != DTYPE_F32 && options.type != DTYPE_BF16 && options.type != DTYPE_F16)))
        return err_set(err, ERR_USAGE,
                       "--dtype %.40s: expected f32, bf16 or f16 (q8_0 for a .gguf file)",
                       r->dtype);
    enum dtype from = source->hf ? hf_folder_dtype(source->hf) : DTYPE_F32;
    if (check_loss(r, source, from, options.type, err) != 0 || check_bias(r, source, err) != 0)
        return -1;
    struct hf_cast_counts counts = {0};
    int result = source->hf
                     ? hf_folder_convert(source->path, r->to, &options, &counts, err)
                     : hf_folder_write(r->to, source->model, &options, fill, source, &counts, err);
    if (result == 0 && (!source->hf || r->tokenizer)) result = carry_tokenizer(r, source, err);
    if (result == 0)
        print_result(r, dtype_name(options.type == DTYPE_COUNT ? from : options.type), &counts);
    return result;
}

static int check_target(const struct request *r, struct err *err) {
    struct stat from, to;
    if (stat(r->to, &to) != 0) return 0;
    if (stat(r->from, &from) == 0 && from.st_dev == to.st_dev && from.st_ino == to.st_ino)
        return err_set(err, ERR_USAGE,
                       "%s: source and target are the same folder; name another target", r->to);
    char path[4096];
    if (S_ISDIR(to.st_mode) && file_join(path, sizeof path, r->to, "manifest.json", err) == 0 &&
        file_exists(path))
        return err_set(err, ERR_USAGE, "%s: is a checkpoint; name another target", r->to);
    return 0;
}

static int convert(const struct request *r, struct err *err) {
    struct model_source source;
    if (check_target(r, err) != 0 || model_source_open(&source, r->from, err) != 0) return -1;
    int result =
        text_ends_with(r->to, ".gguf") ? to_gguf(r, &source, err) : to_folder(r, &source, err);
    model_source_close(&source);
    return result;
}

static int validate(const char *folder, struct err *err) {
    char path[4096];
    if (file_join(path, sizeof path, folder, "manifest.json", err) != 0) return -1;
    if (!file_exists(path)) {
        if (hf_folder_validate(folder, err) != 0) return -1;
    } else {
        struct checkpoint *c;
        if (checkpoint_open(folder, &c, err) != 0) return -1;
        checkpoint_close(c);
    }
    printf("%s: valid\n", folder);
    return 0;
}

int verb_convert(int argc, char **argv) {
    struct request r = {.max_shard_mb = 5000};
    const struct option options[] = {
        {"--dtype", OPTION_TEXT, &r.dtype, 0},
        {"--lossy", OPTION_FLAG, &r.lossy, 0},
        {"--max-shard-mb", OPTION_COUNT, &r.max_shard_mb, 1},
        {"--store-tied-head", OPTION_FLAG, &r.store_tied_head, 0},
        {"--tokenizer", OPTION_TEXT, &r.tokenizer, 0},
        {"--name", OPTION_TEXT, &r.name, 0},
        {"--json", OPTION_FLAG, &r.json, 0},
        {"--validate", OPTION_TEXT, &r.validate, 0},
    };
    const char *words[2];
    int count = 0;
    struct err err = {0};
    int read = options_read(argc, argv, options, sizeof options / sizeof options[0], words, 2,
                            &count, &err);
    if (read == 1) {
        fputs(help, stdout);
        return 0;
    }
    if (read == 0 && count != (r.validate ? 0 : 2))
        read = err_set(&err, ERR_USAGE,
                       r.validate ? "--validate takes one folder"
                                  : "convert needs FROM and TO; weft convert --help describes it");
    if (read == 0) {
        r.from = words[0], r.to = words[1];
        read = r.validate ? validate(r.validate, &err) : convert(&r, &err);
    }
    return read == 0 ? 0 : cli_fail(&err);
}
