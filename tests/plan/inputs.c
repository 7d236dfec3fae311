// The model of a plan as users write it.
#include "plan/inputs.h"
#include "base/file.h"
#include "test.h"
#include <string.h>

static const char llama[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 1000, \"hidden_size\": 64,"
    "\"intermediate_size\": 128, \"num_hidden_layers\": 3, \"num_attention_heads\": 4}";

TEST(inputs_presets_and_files) {
    struct model_config c;
    struct err err = {0};
    const char *path = test_path("config.json");
    CHECK_OK(plan_read_model("gpt3-175b", &c, &err), err);
    CHECK_EQ_INT(c.hidden, 12288);
    CHECK_OK(file_replace(path, llama, strlen(llama), &err), err);
    CHECK_OK(plan_read_model(path, &c, &err), err);
    CHECK_EQ_INT(c.layers, 3);
    CHECK_OK(plan_read_model(test_temp_dir(), &c, &err), err);
    CHECK_EQ_INT(c.hidden, 64);
}

TEST(inputs_that_are_none) {
    struct model_config c;
    struct err err = {0};
    const char *path = test_path("broken.json");
    CHECK(plan_read_model("llama3-70bb", &c, &err) != 0);
    CHECK_CONTAINS(err.text, "did you mean \"llama3-70b\"?");
    err = (struct err){0}; // the first message stays
    CHECK_OK(file_replace(path, "{", 1, &err), err);
    CHECK(plan_read_model(path, &c, &err) != 0);
    CHECK_CONTAINS(err.text, "broken.json");
}
