// Loss and gradients of whole models against PyTorch's (tests/golden/model.py).
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/hf_folder.h"
#include "fixture.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Where a stored tensor lies in the engine's params, by the end of its name.
static const struct place {
    const char *name;
    enum param_role role;
    int part;
    bool turned; // GPT-2 stores matrices [inputs, outputs]
} places[] = {
    {"wte.weight", PARAM_EMBEDDING, 0, false},
    {"wpe.weight", PARAM_POSITION, 0, false},
    {"ln_1.weight", PARAM_ATTENTION_NORM, 0, false},
    {"ln_1.bias", PARAM_ATTENTION_NORM_BIAS, 0, false},
    {"attn.c_attn.weight", PARAM_QKV, -1, true},
    {"attn.c_attn.bias", PARAM_QKV_BIAS, -1, false},
    {"attn.c_proj.weight", PARAM_OUT, 0, true},
    {"attn.c_proj.bias", PARAM_OUT_BIAS, 0, false},
    {"ln_2.weight", PARAM_MLP_NORM, 0, false},
    {"ln_2.bias", PARAM_MLP_NORM_BIAS, 0, false},
    {"c_fc.weight", PARAM_UP, 0, true},
    {"c_fc.bias", PARAM_UP_BIAS, 0, false},
    {"mlp.c_proj.weight", PARAM_DOWN, 0, true},
    {"mlp.c_proj.bias", PARAM_DOWN_BIAS, 0, false},
    {"ln_f.weight", PARAM_FINAL_NORM, 0, false},
    {"ln_f.bias", PARAM_FINAL_NORM_BIAS, 0, false},
    {"embed_tokens.weight", PARAM_EMBEDDING, 0, false},
    {"lm_head.weight", PARAM_HEAD, 0, false},
    {"input_layernorm.weight", PARAM_ATTENTION_NORM, 0, false},
    {"post_feedforward_layernorm.weight", PARAM_MLP_NORM, 0, false},
    {"q_proj.weight", PARAM_QKV, 0, false},
    {"k_proj.weight", PARAM_QKV, 1, false},
    {"v_proj.weight", PARAM_QKV, 2, false},
    {"q_proj.bias", PARAM_QKV_BIAS, 0, false},
    {"k_proj.bias", PARAM_QKV_BIAS, 1, false},
    {"v_proj.bias", PARAM_QKV_BIAS, 2, false},
    {"o_proj.weight", PARAM_OUT, 0, false},
    {"o_proj.bias", PARAM_OUT_BIAS, 0, false},
    {"q_norm.weight", PARAM_Q_NORM, 0, false},
    {"k_norm.weight", PARAM_K_NORM, 0, false},
    {"gate_proj.weight", PARAM_UP, 0, false},
    {"up_proj.weight", PARAM_UP, 1, false},
    {"gate_proj.bias", PARAM_UP_BIAS, 0, false},
    {"up_proj.bias", PARAM_UP_BIAS, 1, false},
    {"down_proj.weight", PARAM_DOWN, 0, false},
    {"down_proj.bias", PARAM_DOWN_BIAS, 0, false},
    {"model.norm.weight", PARAM_FINAL_NORM, 0, false},
    {"block_sparse_moe.gate.weight", PARAM_ROUTER, 0, false},
    {"mlp.gate.weight", PARAM_ROUTER, 0, false},
    {"w1.weight", PARAM_EXPERT_UP, 0, false},
    {"w3.weight", PARAM_EXPERT_UP, 1, false},
    {"w2.weight", PARAM_EXPERT_DOWN, 0, false},
};

static struct place place_of(const struct model *model, const char *name) {
    bool after = model->config.norm_place == NORM_AFTER;
    if (text_ends_with(name, "post_attention_layernorm.weight"))
        return (struct place){"", after ? PARAM_ATTENTION_NORM : PARAM_MLP_NORM, 0, false};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        if (text_ends_with(name, places[i].name)) return places[i];
    test_fail(__FILE__, __LINE__, "tensor %s has no place", name);
}

static int layer_of(const char *name) {
    const char *at = strstr(name, ".h.");
    at = at ? at + 3 : strstr(name, "layers.") ? strstr(name, "layers.") + 7 : NULL;
    return at ? atoi(at) : -1;
}

static void check_tensor(const struct model *model, const struct tensor *gradients,
                         const char *name, json_t *expected) {
    struct place place = place_of(model, name);
    const char *number = strstr(name, "experts.");
    if (number && place.role == PARAM_UP) place.role = PARAM_EXPERT_UP;
    if (number && place.role == PARAM_DOWN) place.role = PARAM_EXPERT_DOWN;
    int param = number ? model_param_expert(model, layer_of(name), place.role, atoi(number + 8))
                       : model_param(model, layer_of(name), place.role);
    CHECK(param >= 0);
    const struct param *p = &model->params[param];
    int64_t rows = place.part < 0 ? p->rows : p->part_rows[place.part], first = 0;
    for (int i = 0; i < place.part; i++) first += p->part_rows[i];
    const float *g = (const float *)gradients[param].data + first * p->columns;
    double norm = 0, tensor_norm = json_number_value(json_object_get(expected, "norm"));
    for (int64_t i = 0; i < rows * p->columns; i++) norm += (double)g[i] * (double)g[i];
    if (fabs(sqrt(norm) - tensor_norm) > 1e-4 * tensor_norm + 1e-6)
        test_fail(__FILE__, __LINE__, "%s: gradient norm %.8g, expected %.8g", name, sqrt(norm),
                  tensor_norm);
    json_t *index = json_object_get(expected, "index"), *value = json_object_get(expected, "value");
    CHECK(json_array_size(index) > 0);
    for (size_t k = 0; k < json_array_size(index); k++) {
        int64_t flat = (int64_t)json_number_value(json_array_get(index, k));
        if (place.turned) flat = flat % rows * p->columns + flat / rows;
        double wanted = json_number_value(json_array_get(value, k));
        if (fabs((double)g[flat] - wanted) > 1e-4 * tensor_norm + 1e-6)
            test_fail(__FILE__, __LINE__, "%s[%lld]: gradient %.8g, expected %.8g", name,
                      (long long)flat, (double)g[flat], wanted);
    }
}

static void load(struct fixture *f, const struct hf_folder *folder) {
    struct err err = {0};
    struct tensor *masters;
    int count;
    CHECK_OK(engine_tensors(f->engine, ENGINE_MASTER, &masters, &count, &err), err);
    for (int i = 0; i < count; i++) CHECK_OK(hf_folder_read(folder, i, masters[i].data, &err), err);
    free(masters);
    engine_weights_changed(f->engine);
}

static struct batch batch_of(json_t *rows) { // each row's tokens predict their next
    int n = (int)json_array_size(rows), width = (int)json_array_size(json_array_get(rows, 0));
    struct batch b = fixture_batch(n, width, 2, 1);
    for (int r = 0; r < n; r++)
        for (int i = 0; i < width; i++) {
            json_t *row = json_array_get(rows, (size_t)r);
            b.input[r * width + i] = (int)json_integer_value(json_array_get(row, (size_t)i));
            b.target[r * width + i] =
                i + 1 < width ? (int)json_integer_value(json_array_get(row, (size_t)i + 1)) : -1;
        }
    fixture_count(&b);
    return b;
}

static void check_logits(struct fixture *f, json_t *expected) {
    struct err err = {0};
    json_t *tokens = json_object_get(expected, "tokens");
    json_t *rows = json_pack("[O]", tokens), *positions = json_object_get(expected, "positions");
    struct batch b = batch_of(rows);
    int32_t wanted[64];
    int count = (int)json_array_size(positions), vocab = f->model.config.vocab;
    for (int i = 0; i < count; i++)
        wanted[i] = (int32_t)json_integer_value(json_array_get(positions, (size_t)i));
    float *logits = malloc((size_t)count * (size_t)vocab * sizeof *logits);
    CHECK_OK(engine_logits(f->engine, &b, wanted, count, logits, &err), err);
    for (int i = 0; i < count; i++)
        for (int v = 0; v < vocab; v++)
            CHECK_CLOSE(
                logits[i * vocab + v],
                json_number_value(json_array_get(
                    json_array_get(json_object_get(expected, "logits"), (size_t)i), (size_t)v)),
                2e-4);
    double sum;
    int64_t counted;
    CHECK_OK(engine_evaluate(f->engine, &b, &sum, &counted, NULL, &err), err);
    CHECK_CLOSE(sum / (double)counted, json_number_value(json_object_get(expected, "loss")), 1e-5);
    free(logits);
    fixture_free(&b);
    json_decref(rows);
}

static void check_gradients(struct fixture *f, json_t *expected) {
    struct err err = {0};
    struct batch b = batch_of(json_object_get(expected, "batch"));
    struct engine_step step = fixture_step(f, &b, 1, false);
    CHECK_CLOSE(step.loss, json_number_value(json_object_get(expected, "loss")), 1e-5);
    struct tensor *gradients;
    int count;
    CHECK_OK(engine_tensors(f->engine, ENGINE_GRADIENTS, &gradients, &count, &err), err);
    json_t *tensors = json_object_get(expected, "tensors");
    CHECK(json_object_size(tensors) > 10);
    for (void *at = json_object_iter(tensors); at; at = json_object_iter_next(tensors, at))
        check_tensor(&f->model, gradients, json_object_iter_key(at), json_object_iter_value(at));
    free(gradients);
    fixture_free(&b);
}

static void check_golden(const char *name, bool gradients) {
    struct err err = {0};
    char path[4096];
    struct hf_folder *folder;
    snprintf(path, sizeof path, "%s/checkpoints/%s", test_golden_dir(), name);
    CHECK_OK(hf_folder_open(path, &folder, &err), err);
    strcat(path, "/expected.json");
    json_t *expected = json_parse_file(path, &err);
    if (!expected) test_fail(__FILE__, __LINE__, "%s", err.text);
    json_t *batch = json_object_get(json_object_get(expected, "gradients"), "batch");
    int length = (int)json_array_size(json_object_get(expected, "tokens"));
    struct engine_options options = {
        .compute = DTYPE_F32, .rows = 1, .context = length, .train = gradients};
    for (int part = 0; part < 1 + gradients; part++) {
        struct fixture f;
        if (part == 1) {
            options.rows = (int)json_array_size(batch);
            options.context = (int)json_array_size(json_array_get(batch, 0));
        }
        fixture_open(&f, &hf_folder_model(folder)->config, options, 1, DEVICE_ISA_BEST);
        load(&f, folder);
        if (part == 0) check_logits(&f, expected);
        if (part == 1) check_gradients(&f, json_object_get(expected, "gradients"));
        fixture_close(&f);
    }
    json_decref(expected);
    hf_folder_close(folder);
}

#define GOLDEN(id, name, gradients)                                                                \
    TEST(golden_##id) {                                                                            \
        check_golden(name, gradients);                                                             \
    }
GOLDEN(gpt2, "gpt2", true)
GOLDEN(llama, "llama", true)
GOLDEN(llama_bias, "llama-bias", true)
GOLDEN(llama_dynamic, "llama-dynamic", false)
GOLDEN(llama_linear, "llama-linear", false)
GOLDEN(llama_yarn, "llama-yarn", false)
GOLDEN(mistral, "mistral", false)
GOLDEN(olmo2, "olmo2", true)
GOLDEN(qwen2, "qwen2", false)
GOLDEN(qwen2_window, "qwen2-window", true)
GOLDEN(qwen3, "qwen3", true)
GOLDEN(smollm2, "smollm2", false)
GOLDEN(mixtral, "mixtral", true)
GOLDEN(qwen3_moe, "qwen3-moe", true)
GOLDEN(qwen3_moe_norm, "qwen3-moe-norm", false)
