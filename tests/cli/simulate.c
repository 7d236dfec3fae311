// weft simulate run and weft plan size: options, files, refusals.
#include "base/file.h"
#include "test.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int run(char *out, size_t bytes, const char *arguments) {
    return test_shell(out, bytes, "%s %s 2>&1", test_weft(), arguments);
}

static const char usual[] = "simulate run --nodes 64 --step-seconds 2 --days 30 ";

static json_t *report(const char *more) {
    char out[32768], line[1024];
    snprintf(line, sizeof line, "%s --runs 50 --json %s", usual, more);
    CHECK_EQ_INT(run(out, sizeof out, line), 0);
    json_t *json = json_loads(out, 0, NULL);
    if (!json) test_fail(__FILE__, __LINE__, "no JSON: %s", out);
    return json;
}

static double number(json_t *json, const char *object, const char *key) {
    json_t *value = json_object_get(json_object_get(json, object), key);
    if (!value) test_fail(__FILE__, __LINE__, "no %s.%s", object, key);
    return json_number_value(value);
}

TEST(simulate_worked_figures_as_text) {
    char out[16384], line[512];
    snprintf(line, sizeof line, "%s --pessimistic --price 2 --synchronous 90 --runs 20", usual);
    CHECK_EQ_INT(run(out, sizeof out, line), 0);
    CHECK_CONTAINS(out, "32.8 h");
    CHECK_CONTAINS(out, "Young sqrt(2 C M) 1087 s");
    CHECK_CONTAINS(out, "sqrt(2 C R) = 77.5 s");
    CHECK_CONTAINS(out, "3.90 % blocking and lost work, against 0.92 %");
    CHECK_CONTAINS(out, "0.9 days, 10,998 accelerator-hours, $21,997");
    CHECK_CONTAINS(out, "default"); // both rates are printed, whichever is used
    CHECK_EQ_INT(
        run(out, sizeof out,
            "simulate run --nodes 1024 --step-seconds 1.5 --days 30 --pessimistic --runs 20"),
        0);
    CHECK_CONTAINS(out, "at best 92.48 %");
    CHECK_CONTAINS(out, "99.5 % needs recovery within 37 s");
}

TEST(simulate_json_and_seed) {
    json_t *a = report("--seed 5"), *b = report("--seed 5"), *c = report("--seed 6");
    CHECK(json_equal(a, b));
    CHECK(!json_equal(json_object_get(a, "simulated"), json_object_get(c, "simulated")));
    CHECK_CLOSE(number(a, "closed", "mtbf_seconds"), 86400 / (64 * 3.8e-3), 1e-9);
    CHECK_CLOSE(number(a, "closed_pessimistic", "mtbf_seconds"), 118125, 1e-9);
    json_t *effective = json_object_get(json_object_get(a, "simulated"), "effective");
    CHECK(json_real_value(json_object_get(effective, "p5")) <=
          json_real_value(json_object_get(effective, "p95")));
    json_decref(a);
    json_decref(b);
    json_decref(c);
}

TEST(simulate_interval_is_raised_and_said) {
    json_t *json = report("--interval 30");
    CHECK_CLOSE(number(json, "interval", "seconds"), 90, 1e-12);
    CHECK(json_is_true(json_object_get(json_object_get(json, "interval"), "raised")));
    json_decref(json);
    char out[16384], line[512];
    snprintf(line, sizeof line, "%s --interval 30 --runs 5", usual);
    CHECK_EQ_INT(run(out, sizeof out, line), 0);
    CHECK_CONTAINS(out, "raised from 30 s: a snapshot takes 90 s to write");
    snprintf(line, sizeof line, "%s --interval 40d --runs 5", usual);
    CHECK_EQ_INT(run(out, sizeof out, line), 0);
    CHECK_CONTAINS(out, "the run is shorter than");
}

TEST(simulate_reads_files) {
    char out[16384], line[2048];
    struct err err = {0};
    const char *yaml = test_path("run.yaml");
    const char *text = "nodes: 64\nstep_seconds: 2\ndays: 30\nrepair: 2d\nblocking: 7\n"
                       "pessimistic: false\n";
    CHECK_OK(file_replace(yaml, text, strlen(text), &err), err);
    snprintf(line, sizeof line, "simulate run %s --blocking 9 --runs 5 --json", yaml);
    CHECK_EQ_INT(run(out, sizeof out, line), 0);
    json_t *json = json_loads(out, 0, NULL);
    CHECK(json);
    CHECK_CLOSE(number(json, "run", "repair_seconds"), 172800, 1e-12);
    CHECK_CLOSE(number(json, "run", "blocking_seconds"), 9, 1e-12); // the option wins
    json_decref(json);
    const char *plan = test_path("plan.json");
    text = "{\"cluster\": {\"nodes\": 16, \"per_node\": 4, \"price_per_hour\": 3.5}, \"plans\": "
           "[{\"step_seconds\": 1.25, \"tokens_per_step\": 1e6, \"steps\": 5000}]}";
    CHECK_OK(file_replace(plan, text, strlen(text), &err), err);
    snprintf(line, sizeof line, "simulate run %s --runs 5 --json", plan);
    CHECK_EQ_INT(run(out, sizeof out, line), 0);
    json = json_loads(out, 0, NULL);
    CHECK(json);
    CHECK_CLOSE(number(json, "run", "nodes"), 16, 0);
    CHECK_CLOSE(number(json, "run", "step_seconds"), 1.25, 0);
    CHECK_CLOSE(number(json, "run", "steps"), 5000, 0);
    CHECK_CLOSE(number(json, "run", "price_per_hour"), 3.5, 0);
    json_decref(json);
    snprintf(line, sizeof line, "simulate run %s/configs/simulate/llama3-70b.yaml --runs 5",
             WEFT_SOURCE_DIR);
    CHECK_EQ_INT(run(out, sizeof out, line), 0);
    CHECK_CONTAINS(out, "64 nodes of 8");
}

// From a model and a cluster to a run of weeks, and all pictures on the way.
TEST(plan_to_run_with_pictures) {
    static const char *const pictures[] = {"waterfall.svg",    "memory.svg",         "timeline.svg",
                                           "scaling-weak.svg", "scaling-strong.svg", "cost.svg",
                                           "interval.svg"};
    char out[16384], line[2048], path[1024], folder[512];
    struct err err = {0};
    snprintf(folder, sizeof folder, "%s/pictures", test_temp_dir());
    snprintf(line, sizeof line,
             "plan llama3-8b h100-sxm:8 --global-batch 32 --context 2048 --top 2 --fix tp=2,pp=2 "
             "--svg %s --json > "
             "%s/plan.json",
             folder, test_temp_dir());
    CHECK_EQ_INT(run(out, sizeof out, line), 0);
    for (size_t i = 0; i < sizeof pictures / sizeof pictures[0]; i++) {
        char *svg;
        size_t bytes;
        CHECK_OK(file_join(path, sizeof path, folder, pictures[i], &err), err);
        CHECK_OK(file_read(path, 0, &svg, &bytes, &err), err);
        CHECK(strncmp(svg, "<svg ", 5) == 0 && strstr(svg, "</svg>"));
        CHECK(!strstr(svg, "nan") && bytes < 200000);
        CHECK_CONTAINS(svg, "llama3-8b on h100-sxm:8");
        free(svg);
    }
    snprintf(line, sizeof line, "simulate run %s/plan.json --runs 20 --json", test_temp_dir());
    CHECK_EQ_INT(run(out, sizeof out, line), 0);
    json_t *json = json_loads(out, 0, NULL);
    CHECK(json);
    CHECK_CLOSE(number(json, "run", "nodes"), 1, 0);
    CHECK(number(json, "run", "steps") > 1000);
    json_decref(json);
}

TEST(simulate_snapshot_of_a_model) {
    char out[16384];
    CHECK_EQ_INT(run(out, sizeof out,
                     "simulate run --cluster h100-sxm:512 --params 70e9 --step-seconds 2 --days 3 "
                     "--runs 5 --json"),
                 0);
    json_t *json = json_loads(out, 0, NULL);
    CHECK(json);
    CHECK_CLOSE(number(json, "run", "blocking_seconds"), 980.0 / 512 / 25, 1e-9);
    CHECK_CLOSE(number(json, "run", "price_per_hour"), 2, 1e-12);
    json_decref(json);
}

TEST(simulate_draws) {
    char out[16384], line[1024], *svg;
    size_t bytes;
    struct err err = {0};
    const char *path = test_path("interval.svg");
    snprintf(line, sizeof line, "%s --runs 5 --svg %s", usual, path);
    CHECK_EQ_INT(run(out, sizeof out, line), 0);
    CHECK_OK(file_read(path, 0, &svg, &bytes, &err), err);
    CHECK_CONTAINS(svg, "effective training time");
    free(svg);
}

static void refuse(const char *arguments, const char *word, const char *also) {
    char out[4096];
    CHECK_EQ_INT(run(out, sizeof out, arguments), 2);
    CHECK_CONTAINS(out, word);
    CHECK_CONTAINS(out, also);
    const char *end = strchr(out, '\n');
    CHECK(end && end[1] == 0); // one line
}

TEST(simulate_refuses_in_one_line) {
    static const struct {
        const char *more, *word, *also;
    } cases[] = {
        {"--spares 65", "spares 65", "0 to 64"},
        {"--spares -1", "spares -1", "0 to 64"},
        {"--interval -5", "--interval", "above 0"},
        {"--interval-steps 0", "--interval-steps", "1 step"},
        {"--interval 5 --interval-steps 7", "--interval", "one of the two"},
        {"--steps 7", "--steps", "one of the two"},
        {"--failures 0.1 --pessimistic", "--pessimistic", "one of the two"},
        {"--failures -0.1", "failures -0.1", "0 to 1000"},
        {"--failures nan", "--failures", "a number"},
        {"--blocking 1e99", "blocking 1e+99", "expected"},
        {"--repair 3y", "--repair", "min, h or d"},
        {"--percentile 99", "--percentile", "0.99"},
        {"--uptime 1", "--uptime", "between 0 and 1"},
        {"--slow 0.5", "slow 0.5", "expected 1 to"},
        {"--no-spare maybe", "--no-spare", "wait or shrink"},
        {"--no-spare shrink --replica-nodes 7", "replica-nodes 7", "divisor of the 64"},
        {"--runs 0", "runs 0", "expected 1 to"},
        {"--seed -1", "--seed", "from 0 up"},
        {"--seed 18446744073709551615", "--seed", "from 0 up"},
        {"--params 7e9", "--params", "--cluster"},
        {"--cluster h100-sxm:512 --params -1", "--params", "1 to 1e15"},
        {"--cluster nowhere", "nowhere", ""},
        {"--detektion 5", "--detektion", "did you mean --detection"},
        {"missing.yaml", "missing.yaml", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char line[512], out[4096];
        snprintf(line, sizeof line, "%s %s", usual, cases[i].more);
        if (strcmp(cases[i].more, "missing.yaml") == 0) {
            CHECK_EQ_INT(run(out, sizeof out, line), 4);
            CHECK_CONTAINS(out, "missing.yaml");
            continue;
        }
        refuse(line, cases[i].word, cases[i].also);
    }
    refuse("simulate run --nodes 0 --step-seconds 2 --days 1", "nodes 0", "expected 1 to");
    refuse("simulate run --nodes 8 --days 1", "step-seconds", "more than 0");
    refuse("simulate run --nodes 8 --step-seconds 1", "how long", "--days");
    refuse("simulate walk", "walk", "weft simulate run");
    struct err err = {0};
    char line[1024];
    const char *text = "nodes: 64\nstep_second: 2\n", *path = test_path("bad.yaml");
    CHECK_OK(file_replace(path, text, strlen(text), &err), err);
    snprintf(line, sizeof line, "simulate run %s", path);
    refuse(line, "bad.yaml:2: unknown key", "did you mean step-seconds");
    text = "nodes: 64\npessimistic: maybe\n";
    CHECK_OK(file_replace(path, text, strlen(text), &err), err);
    refuse(line, "bad.yaml:2: pessimistic", "true or false");
    text = "{\"cluster\": {\"nodes\": 4, \"per_node\": 8}, \"plans\": []}";
    path = test_path("bad.json");
    CHECK_OK(file_replace(path, text, strlen(text), &err), err);
    char out[4096];
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s simulate run %s 2>&1", test_weft(), path), 3);
    CHECK_CONTAINS(out, "bad.json: expected a plan");
}

TEST(plan_size_words) {
    char out[16384];
    CHECK_EQ_INT(run(out, sizeof out,
                     "plan size data --batch 2048 --context 4096 --steps-per-second 0.5 --model "
                     "llama3-70b --cluster h100-sxm:512 --shard-tokens 1e6 --workers 10000"),
                 0);
    CHECK_CONTAINS(out, "16.8 MB/s   textbook 8.39 MB/s");
    CHECK_CONTAINS(out, "4.194/s");
    CHECK_EQ_INT(run(out, sizeof out, "plan size checkpoint --params 70e9"), 0);
    CHECK_CONTAINS(out, "980 GB   textbook 500 GB");
    CHECK_CONTAINS(out, "840 GB");
    CHECK_CONTAINS(out, "16.3 GB/s");
    CHECK_EQ_INT(run(out, sizeof out, "plan size packing --model llama3-70b --context 4096"), 0);
    CHECK_CONTAINS(out, "textbook 20 %");
    CHECK_EQ_INT(run(out, sizeof out, "plan size storage --params 70e9 --cluster h100-sxm:512"), 0);
    CHECK_CONTAINS(out, "object store");
    CHECK_EQ_INT(
        run(out, sizeof out,
            "plan size rlhf --policy llama3-70b --reward llama2-13b --cluster h100-sxm:512 "
            "--json"),
        0);
    json_t *json = json_loads(out, 0, NULL);
    CHECK(json);
    json_t *idle = json_object_get(json_object_get(json, "split as wanted"), "idle");
    CHECK_CLOSE(json_real_value(json_object_get(idle, "value")), 12, 0);
    json_decref(json);
    refuse("plan size", "expected data, packing", "rlhf");
    refuse("plan size chekpoint", "did you mean checkpoint", "");
    refuse("plan size data", "--tokens-per-second", "");
    refuse("plan size checkpoint --params 7e9 --model llama3-8b", "--model and --params",
           "one of the two");
    refuse("plan size data --tokens-per-second 3 --batch 4", "--tokens-per-second and --batch", "");
    refuse("plan size checkpoint --params 7e9 --shares 1,0,0,0,0", "--shares is no option of it",
           "host-bandwidth");
    refuse("plan size packing --model llama3-8b --context 0", "--context 0", "1 at least");
    refuse("plan size data --tokens-per-second 3 --vocab -1", "--vocab -1", "1 at least");
    refuse("plan size rlhf --policy llama3-8b --cluster h100-sxm:64 --shares 0,0,0,0,0",
           "add up to 0", "more than 0");
    refuse("plan size data --tokens-per-second -3", "tokens per second -3", "expected");
    refuse("plan size checkpoint --params -7", "parameters -7", "expected 1 to");
    refuse("plan size packing --model llama3-70b --document 0", "document tokens 0", "expected 1");
    refuse("plan size rlhf --policy llama3-70b", "--cluster", "");
    refuse("plan size rlhf --policy llama3-70b --cluster h100-sxm:512 --shares 1,2", "--shares",
           "five numbers");
    refuse("plan size rlhf --policy llama3-70b --cluster h100-sxm:512 --shares 1,1,1,1,1",
           "shares add up to 5", "");
}
