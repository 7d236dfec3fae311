// A plan as a configuration: keys, YAML, the head of comments.
#include "plan/emit.h"
#include "model/families.h"
#include "test.h"
#include <stdlib.h>
#include <string.h>

static struct job *job_of(const char *preset) {
    struct err err = {0};
    struct job *job = malloc(sizeof *job);
    CHECK(job != NULL);
    job_defaults(job);
    CHECK_OK(model_preset(preset, &job->model, &err), err);
    job->context = 256;
    job->layout.layer_first[1] = job->model.layers;
    return job;
}

TEST(emit_groups_keys_as_yaml) {
    struct text out = {0};
    struct err err = {0};
    CHECK_OK(
        emit_yaml("model.layers=2\nmodel.rope.theta=1e4\nmodel.rope.factor=8\ndata.context=16\n"
                  "pipeline.layers=3,4\nmodel.bos=1\n",
                  &out, &err),
        err);
    CHECK_STR(out.data, "model:\n  layers: 2\n  rope:\n    theta: 1e4\n    factor: 8\n"
                        "  bos: 1\ndata:\n  context: 16\npipeline:\n  layers: [3,4]\n");
    CHECK_EQ_INT(emit_yaml("novalue\n", &out, &err), -1);
    text_free(&out);
}

TEST(emit_refuses_what_the_engine_cannot_train) {
    struct text out = {0};
    struct err err = {0};
    struct job *job = job_of("llama-15m");
    job->precision = HARDWARE_FP8;
    CHECK_EQ_INT(emit_keys(job, true, &out, &err), -1);
    CHECK_CONTAINS(err.text, "--precision bf16");
    free(job);
    err = (struct err){0};
    job = job_of("deepseek-v3");
    CHECK_EQ_INT(emit_keys(job, true, &out, &err), -1);
    CHECK_CONTAINS(err.text, "latent attention");
    free(job);
    text_free(&out);
}

TEST(emit_head_is_read_back) {
    struct text out = {0};
    struct err err = {0};
    const struct emit_plan plan = {0xfedcba9876543210u, 512, 6.25, 671088.64, 76.5e9, 0.55};
    struct emit_plan read;
    CHECK_EQ_INT(emit_head(&plan, "a on b", "weft train", &out), 0);
    CHECK_EQ_INT(text_puts(&out, "model:\n  layers: 2\n# plan-digest: 0\n"), 0);
    CHECK_EQ_INT(emit_read_head(out.data, "run.yaml", &read, &err), 0);
    CHECK(read.digest == plan.digest);
    CHECK_EQ_INT(read.ranks, 512);
    CHECK_CLOSE(read.step_seconds, 6.25, 1e-9);
    CHECK_CLOSE(read.tokens_per_second, 671088.64, 1e-8);
    CHECK_CLOSE(read.memory_bytes, 76.5e9, 1e-9);
    CHECK_EQ_INT(emit_read_head("model:\n  layers: 2\n", "run.yaml", &read, &err), 1);
    CHECK_EQ_INT(emit_read_head("# plan-digest: 12\nmodel:\n", "run.yaml", &read, &err), -1);
    CHECK_CONTAINS(err.text, "run.yaml: the head that weft plan wrote is damaged");
    text_free(&out);
}
