// See plan_model.h.
#include "cli/plan_model.h"
#include "base/text.h"
#include "base/yaml.h"
#include "plan/inputs.h"
#include "train/config.h"
#include <stdlib.h>
#include <string.h>

static bool says(const struct yaml_leaves *leaves, const char *key) {
    for (size_t i = 0; i < leaves->count; i++)
        if (strcmp(leaves->leaf[i].key, key) == 0) return true;
    return false;
}

static int read_config(const char *path, struct plan_model *out, struct err *err) {
    struct train_config *config = calloc(1, sizeof *config);
    struct yaml_leaves leaves;
    int result = config ? config_load(config, path, NULL, 0, err)
                        : err_set(err, ERR_MEMORY, "no memory for the configuration");
    if (result == 0) result = yaml_read(path, &leaves, err);
    if (result == 0) {
        *out = (struct plan_model){.config = config->model, .from_config = true};
        if (says(&leaves, "train.batch")) out->batch = config->batch;
        if (says(&leaves, "data.context")) out->context = config->context;
        if (says(&leaves, "train.steps")) out->steps = config->steps;
        out->fp32 = config->precision == PRECISION_FP32;
        yaml_free(&leaves);
    }
    free(config);
    return result;
}

int plan_model_read(const char *text, struct plan_model *out, struct err *err) {
    if (text_ends_with(text, ".yaml") || text_ends_with(text, ".yml"))
        return read_config(text, out, err);
    struct plan_model model = {0};
    if (plan_read_model(text, &model.config, err) != 0) return -1;
    *out = model;
    return 0;
}
