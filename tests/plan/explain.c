// Timelines compared: a predicted one that is written and read back, and a measured one of two
// steps.
#include "plan/explain.h"
#include "base/file.h"
#include "plan/jobs.h"
#include "test.h"
#include <stdio.h>
#include <string.h>

static void write_text(const char *name, const char *text) {
    struct err err = {0};
    CHECK_OK(file_replace(test_path(name), text, strlen(text), &err), err);
}

#define HEAD "{\"displayTimeUnit\":\"ms\",\"traceEvents\":["
#define ROW(row, name)                                                                             \
    "\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":0,\"tid\":" row                              \
    ",\"args\":{\"name\":\"" name "\"}}"
#define SPAN(name, kind, row, begin, length)                                                       \
    ",\n{\"name\":\"" name "\",\"cat\":\"" kind "\",\"ph\":\"X\",\"pid\":0,\"tid\":" row           \
    ",\"ts\":" begin ",\"dur\":" length "}"
#define END "\n],\"otherData\":{\"spans_dropped\":0}}\n"

// One rank, two micro-batches: forwards of 100 and 110 us, backwards of 200, an optimizer of 50.
static const char predicted[] = HEAD ROW("0", "rank 0") SPAN("forward", "forward", "0", "0", "100")
    SPAN("backward", "backward", "0", "100", "200") SPAN("forward", "forward", "0", "300", "100")
        SPAN("backward", "backward", "0", "400", "200")
            SPAN("optimizer", "optimizer", "0", "600", "50") END;

// Two steps. Inside are products, which are no actions, a wait for another stage (40 us, taken
// out), one of tensor parallelism (30 us, left in), and one for gradients before the optimizer.
static const char measured[] = HEAD ROW("0", "compute")
    // step 1
    SPAN("forward", "forward", "0", "0", "100") SPAN("backward", "backward", "0", "100", "200")
        SPAN("forward", "forward", "0", "300", "100")
            SPAN("backward", "backward", "0", "400", "200")
                SPAN("optimizer", "optimizer", "0", "600", "50")
    // step 2
    SPAN("forward product", "gemm", "0", "650", "20") SPAN("receive", "comm_wait", "0", "670", "40")
        SPAN("all_reduce tp@0", "comm_wait", "0", "710", "30")
            SPAN("forward", "forward", "0", "650", "165")
                SPAN("backward", "backward", "0", "815", "250")
                    SPAN("forward", "forward", "0", "1065", "80")
                        SPAN("backward", "backward", "0", "1145", "200")
                            SPAN("reduce_scatter reduce@0", "comm_wait", "0", "1350", "10")
                                SPAN("optimizer", "optimizer", "0", "1345", "60")
                                    SPAN("forward", "forward", "1", "0", "7") END;

TEST(explain_takes_waits_out) {
    struct explain_trace p = {0}, m = {0};
    struct explain e;
    struct err err = {0};
    write_text("p.json", predicted);
    write_text("m.json", measured);
    CHECK_OK(explain_read_predicted(test_path("p.json"), &p, &err), err);
    CHECK_OK(explain_read_measured(test_path("m.json"), 0, 1, &m, &err), err);
    CHECK_EQ_INT(p.count, 5);
    CHECK_EQ_INT(m.count, 5);
    CHECK_EQ_INT(m.steps, 1);
    CHECK_CLOSE(m.step_seconds, 755e-6, 1e-12); // from one optimizer's end to the next
    CHECK_CLOSE(m.stage_seconds, 40e-6, 1e-12);
    CHECK_CLOSE(m.state_seconds, 10e-6, 1e-12);
    CHECK_OK(explain_compare(&p, &m, &e, &err), err);
    CHECK_EQ_INT(e.pair_count, 5);
    // forwards: 100 / 125 and 100 / 80; backwards 200 / 250 and 200 / 200; optimizer 50 / 50
    CHECK_EQ_INT(e.kinds[EXPLAIN_FORWARD].count, 2);
    CHECK_CLOSE(e.kinds[EXPLAIN_FORWARD].measured, 205e-6, 1e-12);
    CHECK_CLOSE(e.kinds[EXPLAIN_FORWARD].median_error, (0.2 + 0.25) / 2, 1e-9);
    CHECK_CLOSE(e.kinds[EXPLAIN_OPTIMIZER].median_error, 0, 1e-9);
    CHECK_CLOSE(e.all.median_error, 0.2, 1e-9);
    // the largest difference in seconds comes first
    CHECK(e.pairs[0].measured->name == EXPLAIN_BACKWARD && e.pairs[0].measured->index == 0);
    CHECK_CLOSE(e.pairs[0].error, -0.2, 1e-9);
    explain_free(&e);
    explain_trace_free(&m);
    // both steps: the median of two is their mean
    CHECK_OK(explain_read_measured(test_path("m.json"), 0, 0, &m, &err), err);
    CHECK_EQ_INT(m.steps, 2);
    CHECK_CLOSE(m.actions[0].seconds, (100e-6 + 125e-6) / 2, 1e-12);
    explain_trace_free(&m);
    explain_trace_free(&p);
}

// What is written is what was simulated: all actions of all ranks, the step as long.
TEST(explain_writes_the_simulation) {
    static struct job job;
    struct estimate estimate;
    struct explain_trace t = {0};
    struct err err = {0};
    static const struct test_layout layout = {
        "llama-15m", "h100-sxm:8", "weft", 1, 2, 1, 1, 0, 1, 256, 16, PIPELINE_ZB_H1};
    test_job(&layout, &job);
    CHECK_EQ_INT(job.micro_batches, 4);
    CHECK_OK(estimate_step(&job, true, &estimate, &err), err);
    CHECK_OK(explain_write_trace(test_path("w.json"), &job, &estimate, &err), err);
    CHECK_OK(explain_read_predicted(test_path("w.json"), &t, &err), err);
    CHECK_EQ_INT(t.ranks, 8);
    CHECK_EQ_INT(t.count, 8 * (3 * 4 + 1));
    CHECK_CLOSE(t.step_seconds / estimate.step_seconds, 1, 1e-3); // written in nanoseconds
    for (int i = 0; i < t.count; i++) {
        const struct explain_action *a = &t.actions[i];
        int stage = a->rank / 4; // pp is the slowest axis
        const struct estimate_stage *s = &estimate.stages[stage];
        double seconds = a->name == EXPLAIN_FORWARD           ? s->forward
                         : a->name == EXPLAIN_BACKWARD_INPUT  ? s->input
                         : a->name == EXPLAIN_BACKWARD_WEIGHT ? s->weight
                                                              : -1;
        CHECK(seconds < 0 ||
              (a->seconds > 0.99 * seconds - 2e-9 && a->seconds < 1.01 * seconds + 2e-9));
    }
    explain_trace_free(&t);
    estimate_free(&estimate);
}

TEST(explain_bad_input) {
    struct explain_trace t = {0}, other = {0};
    struct explain e;
    struct err err = {0};
    write_text("empty.json", HEAD ROW("0", "compute") END);
    CHECK_EQ_INT(explain_read_measured(test_path("empty.json"), 0, 0, &t, &err), -1);
    CHECK_CONTAINS(err.text, "holds no step");
    err = (struct err){0};
    CHECK_EQ_INT(explain_read_predicted(test_path("empty.json"), &t, &err), -1);
    CHECK_CONTAINS(err.text, "no predicted timeline");
    err = (struct err){0};
    CHECK_EQ_INT(explain_read_measured(test_path("none.json"), 0, 0, &t, &err), -1);
    CHECK_CONTAINS(err.text, "none.json");
    err = (struct err){0};
    // other ranks have nothing in common
    write_text("p.json", predicted);
    CHECK_OK(explain_read_predicted(test_path("p.json"), &t, &err), err);
    CHECK_OK(explain_read_measured(test_path("p.json"), 1, 0, &other, &err), err);
    CHECK_EQ_INT(explain_compare(&t, &other, &e, &err), -1);
    CHECK_CONTAINS(err.text, "no action in common");
    explain_trace_free(&t);
    explain_trace_free(&other);
}
