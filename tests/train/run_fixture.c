// See run_fixture.h.
#include "run_fixture.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/random.h"
#include "checkpoint/checkpoint.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void write_tokens(const char *path, int count, uint64_t key) {
    struct err err = {0};
    uint16_t *ids = malloc(sizeof *ids * (size_t)count);
    CHECK(ids != NULL);
    for (int i = 0; i < count; i++) { // small ids are frequent: something to learn
        double u = random_uniform(key, (uint64_t)i);
        ids[i] = (uint16_t)(100 * u * u);
    }
    CHECK_OK(file_replace(path, ids, sizeof *ids * (size_t)count, &err), err);
    free(ids);
}

void fixture_config(struct train_config *config, const char *folder, const char *name,
                    const char *const *words) {
    enum { MOST = 64 };
    static char text[MOST][512];
    char train[4096], validation[4096], *all[MOST];
    int count = 0;
    struct err err = {0};
    snprintf(train, sizeof train, "%s/train.bin", folder);
    snprintf(validation, sizeof validation, "%s/validation.bin", folder);
    if (!file_exists(train)) {
        write_tokens(train, 6000, 1);
        write_tokens(validation, 700, 2);
    }
    const char *const usual[] = {
        "model.family=llama",  "model.layers=2",  "model.hidden=32",      "model.heads=4",
        "model.kv_heads=2",    "model.vocab=100", "model.context=32",     "train.batch=4",
        "train.micro_batch=2", "train.steps=12",  "train.gemm_seconds=0", "checkpoint.every=4",
        "device.threads=1"};
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++)
        snprintf(text[count++], sizeof text[0], "%s", usual[i]);
    snprintf(text[count++], sizeof text[0], "data.train=%.400s", train);
    snprintf(text[count++], sizeof text[0], "data.validation=%.400s", validation);
    snprintf(text[count++], sizeof text[0], "train.folder=%.300s/%.100s", folder, name);
    snprintf(text[count++], sizeof text[0], "checkpoint.snapshot_folder=%.400s/memory", folder);
    for (; *words && count < MOST; words++) snprintf(text[count++], sizeof text[0], "%s", *words);
    for (int i = 0; i < count; i++) all[i] = text[i];
    CHECK_OK(config_load(config, NULL, all, count, &err), err);
}

const char *fixture_column(const struct train_config *config, const char *member) {
    enum { KEPT = 64 };
    static char *kept[KEPT];
    static int turn;
    char path[4096], *text;
    size_t size;
    struct err err = {0};
    struct text out = {0};
    snprintf(path, sizeof path, "%s/metrics.jsonl", config->folder);
    CHECK_OK(file_read(path, 0, &text, &size, &err), err);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *object = json_parse(line, strlen(line), path, &err);
        CHECK(object != NULL);
        json_t *value = json_object_get(object, member);
        if (value && !json_object_get(object, "event")) {
            char *word = json_dumps(value, JSON_ENCODE_ANY);
            text_printf(&out, "%s%s", out.size ? " " : "", word);
            free(word);
        }
        json_decref(object);
    }
    free(text);
    turn = (turn + 1) % KEPT;
    free(kept[turn]);
    kept[turn] = out.data ? out.data : strdup("");
    return kept[turn];
}

uint64_t fixture_checkpoint_hash(const struct train_config *config, int64_t step) {
    char path[CHECKPOINT_PATH_BYTES];
    struct checkpoint *c;
    struct hash_stream h;
    struct err err = {0};
    int count;
    CHECK_OK(checkpoint_step_path(config->checkpoint_folder, step, path, &err), err);
    CHECK_OK(checkpoint_open(path, &c, &err), err);
    const struct tensor *tensors = checkpoint_tensors(c, &count);
    CHECK(count > 10);
    hash_begin(&h);
    for (int i = 0; i < count; i++) {
        hash_put(&h, tensors[i].name, strlen(tensors[i].name));
        void *values = malloc(tensor_bytes(&tensors[i]));
        CHECK(values != NULL);
        CHECK_OK(checkpoint_read(c, tensors[i].name, values, &err), err);
        hash_put(&h, values, tensor_bytes(&tensors[i]));
        free(values);
    }
    checkpoint_close(c);
    return hash_end(&h);
}
