// Bubbles of the simulated lists against formulas and against times worked out by hand.
#include "schedule/pipeline.h"
#include "test.h"

static struct pipeline_times simulate(const struct pipeline *p,
                                      const struct pipeline_costs *costs) {
    struct pipeline_times times;
    struct err err = {0};
    CHECK_OK(pipeline_simulate(p, costs, &times, &err), err);
    return times;
}

static double bubble(enum pipeline_kind kind, int ranks, int chunks, int micro_batches,
                     double *formula) {
    struct pipeline p;
    struct err err = {0};
    struct pipeline_shape shape = {kind, ranks, chunks, micro_batches, 0, false, false};
    CHECK_OK(pipeline_open(&p, &shape, &err), err);
    struct pipeline_costs costs = {.forward = 1, .input = 1, .weight = 1};
    struct pipeline_times t = simulate(&p, &costs);
    double result = t.bubble;
    CHECK_CLOSE(t.bubble_over_ideal, t.bubble / (1 - t.bubble), 1e-12);
    if (formula) *formula = pipeline_bubble_formula(&shape);
    pipeline_times_free(&t);
    pipeline_close(&p);
    return result;
}

TEST(bubbles_are_the_formulas) {
    double formula;
    CHECK_CLOSE(bubble(PIPELINE_1F1B, 4, 0, 8, &formula), 3.0 / 11, 1e-12);
    CHECK_CLOSE(formula, 3.0 / 11, 1e-12);
    for (int p = 1; p <= 8; p++)
        for (int m = 1; m <= 20; m++) {
            double one = bubble(PIPELINE_1F1B, p, 0, m, &formula);
            CHECK_CLOSE(one, formula, 1e-12);
            CHECK_CLOSE(bubble(PIPELINE_GPIPE, p, 0, m, &formula), one, 1e-12);
            CHECK_CLOSE(bubble(PIPELINE_INTERLEAVED, p, 1, m, &formula), one, 1e-12);
            if (m < p) continue;
            double h1 = bubble(PIPELINE_ZB_H1, p, 0, m, &formula);
            CHECK_CLOSE(h1, formula, 1e-12);
        }
    for (int p = 1; p <= 8; p++)
        for (int v = 1; v <= 4; v++)
            for (int m = p; m <= 4 * p; m += p) {
                double found = bubble(PIPELINE_INTERLEAVED, p, v, m, &formula);
                CHECK_CLOSE(found, formula, 1e-12);
            }
}

TEST(zero_bubble_kinds_shrink_it) {
    double formula;
    for (int p = 2; p <= 8; p++)
        for (int m = p; m <= 6 * p; m++) {
            double one = bubble(PIPELINE_1F1B, p, 0, m, NULL);
            double h1 = bubble(PIPELINE_ZB_H1, p, 0, m, NULL);
            double v = bubble(PIPELINE_ZB_V, p, 0, m, &formula);
            // H1: a third of 1F1B's idle time.
            CHECK_CLOSE(h1 / (1 - h1), one / (1 - one) / 3, 1e-12);
            // V: a sixth of it, the ranks' staggered begin and end, but for an action here and
            // there; never more than H1.
            CHECK(v >= formula - 1e-12 && v <= h1 + 1e-12);
            double extra = 6 * m * (v / (1 - v) - formula / (1 - formula)); // actions
            if (extra > (p <= 4 ? 2 : 5) + 1e-9)
                test_fail(__FILE__, __LINE__, "zb-v p %d m %d: %g, formula %g", p, m, v, formula);
        }
    CHECK_CLOSE(bubble(PIPELINE_ZB_V, 4, 0, 8, NULL), 3.0 / 51, 1e-12);
    CHECK(bubble(PIPELINE_ZB_V, 4, 0, 64, NULL) < 0.01);
}

TEST(remainders_still_gain) {
    for (int p = 2; p <= 8; p++)
        for (int m = 2 * p; m <= 4 * p; m++)
            CHECK(bubble(PIPELINE_INTERLEAVED, p, 2, m, NULL) <
                  bubble(PIPELINE_1F1B, p, 0, m, NULL));
}

// ---- times by hand

static struct pipeline read_list(const char *text) {
    struct pipeline p;
    struct err err = {0};
    struct pipeline_shape shape = {0};
    CHECK_OK(pipeline_open_csv(&p, text, "list", &shape, &err), err);
    return p;
}

static void check_span(const struct pipeline *p, const struct pipeline_times *t, int index,
                       const char *action, bool wait, double begin, double end) {
    char name[32];
    CHECK(index < t->span_count);
    struct pipeline_span s = t->spans[index];
    schedule_action_text(p->ranks[s.rank].actions[s.action], name);
    CHECK_STR(name, action);
    CHECK_EQ_INT(s.wait, wait);
    CHECK_CLOSE(s.begin, begin, 1e-12);
    CHECK_CLOSE(s.end, end, 1e-12);
}

TEST(sends_hide_behind_compute) {
    // Two ranks, two micro-batches, forward 2, backward 3 + 1, a send 1, the step 5.
    // Rank 1 holds one micro-batch: its receive of the second stands behind 1B0 (at 9), so that
    // message is seen in full.
    struct pipeline p = read_list("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
    struct pipeline_costs costs = {.forward = 2, .input = 3, .weight = 1, .send = 1, .step = 5};
    struct pipeline_times t = simulate(&p, &costs);
    const struct {
        const char *action;
        bool wait;
        double begin, end;
    } expected[] = {
        {"0F0", false, 0, 2},   {"0F1", false, 2, 4},  {"0B0", true, 4, 10},
        {"0B0", false, 10, 14}, {"0B1", true, 14, 17}, {"0B1", false, 17, 21},
        {"0S", false, 21, 26},  {"1F0", true, 0, 3},   {"1F0", false, 3, 5},
        {"1B0", false, 5, 9},   {"1F1", true, 9, 10},  {"1F1", false, 10, 12},
        {"1B1", false, 12, 16}, {"1S", true, 16, 21},  {"1S", false, 21, 26},
    };
    CHECK_EQ_INT(t.span_count, 15);
    for (int k = 0; k < 15; k++)
        check_span(&p, &t, k, expected[k].action, expected[k].wait, expected[k].begin,
                   expected[k].end);
    CHECK_CLOSE(t.total, 26, 1e-12);
    CHECK_CLOSE(t.ideal, 17, 1e-12);
    CHECK_CLOSE(t.bubble, 1 - 34.0 / 52, 1e-12);
    CHECK_CLOSE(t.bubble_over_ideal, 9.0 / 17, 1e-12);
    pipeline_times_free(&t);
    costs.eager = true; // the second input lies there when 1B0 ends
    t = simulate(&p, &costs);
    check_span(&p, &t, 9, "1B0", false, 5, 9);
    check_span(&p, &t, 10, "1F1", false, 9, 11);
    CHECK_CLOSE(t.total, 25, 1e-12);
    pipeline_times_free(&t);
    pipeline_close(&p);
}

TEST(uneven_stages_and_collectives) {
    // One micro-batch; the last stage costs twice as much. Gathers (4) are begun at once and end at
    // 4; reductions (10) run behind the last backward, beside the other rank's.
    struct pipeline p;
    struct err err = {0};
    struct pipeline_shape shape = {PIPELINE_1F1B, 2, 0, 1, 0, true, true};
    CHECK_OK(pipeline_open(&p, &shape, &err), err);
    const double factor[2] = {1, 2};
    struct pipeline_costs costs = {.forward = 1,
                                   .input = 1,
                                   .weight = 1,
                                   .stage_factor = factor,
                                   .send = 0.5,
                                   .gather = 4,
                                   .reduce = 10,
                                   .step = 1};
    struct pipeline_times t = simulate(&p, &costs);
    // F 4-5, message 5.5, F 5.5-7.5, B 7.5-11.5 (reduction until 21.5), message 12, B 12-14
    // (reduction until 24), step 24-25.
    check_span(&p, &t, 1, "0F0", false, 4, 5);
    check_span(&p, &t, 3, "0B0", false, 12, 14);
    check_span(&p, &t, 5, "0S", false, 24, 25);
    check_span(&p, &t, 7, "1F0", false, 5.5, 7.5);
    check_span(&p, &t, 8, "1B0", false, 7.5, 11.5);
    CHECK_CLOSE(t.total, 25, 1e-12);
    CHECK_CLOSE(t.ideal, 7, 1e-12);
    pipeline_times_free(&t);
    pipeline_close(&p);
}

TEST(neighbours_on_one_rank_send_nothing) {
    struct pipeline p = read_list("0F0,1F0,1B0,0B0\n");
    struct pipeline_costs costs = {.forward = 1, .input = 1, .weight = 1, .send = 100};
    struct pipeline_times t = simulate(&p, &costs);
    CHECK_CLOSE(t.total, 6, 1e-12);
    CHECK_CLOSE(t.bubble, 0, 1e-12);
    pipeline_times_free(&t);
    pipeline_close(&p);
}

// With a slot to spare an input is received while the micro-batch before it still computes.
TEST(spare_slots_hide_messages) {
    static const enum pipeline_kind kinds[] = {PIPELINE_1F1B, PIPELINE_INTERLEAVED, PIPELINE_ZB_H1};
    struct pipeline_costs costs = {.forward = 4, .input = 4, .weight = 4, .send = 1};
    for (int k = 0; k < 3; k++) {
        double total[2];
        int slots[2];
        for (int spare = 0; spare < 2; spare++) {
            struct pipeline p;
            struct err err = {0};
            struct pipeline_shape shape = {kinds[k], 4, 0, 16, spare, false, false};
            CHECK_OK(pipeline_open(&p, &shape, &err), err);
            CHECK_OK(pipeline_validate(&p, &err), err);
            for (int m = 1; m <= 16; m++) CHECK_OK(pipeline_remake(&p, m, &err), err);
            struct pipeline_times t = simulate(&p, &costs);
            total[spare] = t.total;
            slots[spare] = p.slots[3];
            pipeline_times_free(&t);
            pipeline_close(&p);
        }
        CHECK(total[1] < total[0]);
        CHECK_EQ_INT(slots[1], slots[0] + 1);
    }
    struct pipeline p;
    struct err err = {0};
    struct pipeline_shape shape = {PIPELINE_1F1B, 4, 0, 16, -1, false, false};
    CHECK(pipeline_open(&p, &shape, &err) != 0);
}
