// Schedules as CSV and as drawings.
#include "schedule/pipeline.h"
#include "test.h"
#include <string.h>

static int open_text(struct pipeline *p, const char *text, struct err *err) {
    struct pipeline_shape shape = {0};
    return pipeline_open_csv(p, text, "own.csv", &shape, err);
}

static void check_same(const struct pipeline *a, const struct pipeline *b) {
    CHECK_EQ_INT(a->stages, b->stages);
    for (int r = 0; r < a->shape.ranks; r++) {
        CHECK_EQ_INT(a->ranks[r].count, b->ranks[r].count);
        CHECK_BYTES(a->ranks[r].actions, b->ranks[r].actions,
                    (size_t)a->ranks[r].count * sizeof(struct action));
    }
    for (int s = 0; s < a->stages; s++) {
        CHECK_EQ_INT(a->stage_rank[s], b->stage_rank[s]);
        CHECK_EQ_INT(a->slots[s], b->slots[s]);
    }
}

// What is written reads back as the same complete lists.
TEST(csv_round_trip) {
    for (int kind = 0; kind < PIPELINE_FILE; kind++)
        for (int ranks = 1; ranks <= 5; ranks++)
            for (int m = 1; m <= 9; m += 2) {
                struct pipeline p, again;
                struct text text = {0};
                struct err err = {0};
                struct pipeline_shape shape = {
                    (enum pipeline_kind)kind, ranks, 0, m, 0, true, true};
                CHECK_OK(pipeline_open(&p, &shape, &err), err);
                CHECK_EQ_INT(pipeline_print_csv(&p, &text), 0);
                CHECK_OK(pipeline_open_csv(&again, text.data, "again", &shape, &err), err);
                check_same(&p, &again);
                CHECK(pipeline_remake(&again, m, &err) == 0);
                CHECK(pipeline_remake(&again, m + 1, &err) != 0);
                text_free(&text);
                pipeline_close(&p);
                pipeline_close(&again);
            }
}

TEST(csv_as_written) {
    struct pipeline p;
    struct text text = {0};
    struct err err = {0};
    CHECK_OK(open_text(&p, "# mine\n\n 0f0 ,0F1,,0B0,0B1\r\n1F0,1B0, 1F1 ,1B1", &err), err);
    CHECK_EQ_INT(p.shape.ranks, 2);
    CHECK_EQ_INT(p.shape.chunks, 1);
    CHECK_EQ_INT(p.shape.micro_batches, 2);
    CHECK_EQ_INT(p.shape.kind, PIPELINE_FILE);
    CHECK(pipeline_bubble_formula(&p.shape) < 0);
    CHECK_EQ_INT(pipeline_print_csv(&p, &text), 0);
    CHECK_STR(text.data, "0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1\n");
    text_free(&text);
    pipeline_close(&p);
}

TEST(bad_csv_is_refused_in_one_line) {
    const struct {
        const char *text, *part;
    } cases[] = {
        {"", "own.csv: expected one row of actions per rank, found none"},
        {"# only\n", "found none"},
        {",,\n", "found none"},
        {"0F0,0X0\n", "own.csv: row 1, column 2: expected an action such as 0F3"},
        {"0F0,0B\n", "column 2: expected an action"},
        {"0F0,F0\n", "found \"F0\""},
        {"0F0,0B0x\n", "found \"0B0x\""},
        {"0F0,-1B0\n", "found \"-1B0\""},
        {"0F0,0B9999999\n", "found \"0B9999999\""},
        {"0F0,0B0\n0F1,0B1\n",
         "row 2, column 1: expected a stage that no earlier row holds, found \"0F1\""},
        {"1F0,1B0\n", "no row holds stage 0 of the 2"},
        {"0F0,1F0,1B0,0B0\n2F0,2B0\n", "row 1 holds 2 of the 3 stages; expected equally many"},
        {"0F0,0B0\n,,\n", "row 1 holds 1 of the 1 stages"},
        {"0F0\n", "own.csv: schedule: rank 0: the backward of micro-batch 0 of stage 0 is missing"},
        {"0F0,0I0\n", "weight half of micro-batch 0"},
        {"0F1,0B1\n", "the forward of micro-batch 0 of stage 0 is missing"},
        {"0B0,0F0\n", "0B0: its forward must come before"},
        {"0F0,0F0,0B0\n", "0F0: a second forward"},
        {"0F0,0B0,0I0\n", "0I0: a second backward"},
        {"1F0,0F0,1B0,0B0\n", "1F0: the forward of the stage before, on the same rank"},
        {"0F0,1F0,0B0,1B0\n", "0B0: the backward of the stage behind, on the same rank"},
        {"0F0,0F1,0B0,0B1\n1F1,1B0,1F0,1B1\n", "1B0: its forward must come before"},
        {"0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n", "deadlock: waits for"},
        {"0F999999\n", "more than the 524288"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        struct pipeline p;
        struct err err = {0};
        if (open_text(&p, cases[k].text, &err) == 0)
            test_fail(__FILE__, __LINE__, "accepted: %s", cases[k].text);
        CHECK_CONTAINS(err.text, cases[k].part);
        CHECK(!strchr(err.text, '\n'));
    }
    struct pipeline p;
    struct err err = {0};
    struct pipeline_shape shape = {PIPELINE_FILE, 4, 0, 0, 0, false, false};
    CHECK(pipeline_open_csv(&p, "0F0,0B0\n", "own.csv", &shape, &err) != 0);
    CHECK_STR(err.text, "own.csv: has 1 ranks, expected 4");
    err = (struct err){0};
    shape = (struct pipeline_shape){PIPELINE_FILE, 1, 1, 8, 0, false, false};
    CHECK(pipeline_open_csv(&p, "0F0,0B0\n", "own.csv", &shape, &err) != 0);
    CHECK_STR(err.text, "own.csv: has 1 micro-batches, expected 8");
}

// Random bytes of the alphabet: refused or right, never a crash or a hang.
TEST(random_csv) {
    static const char letters[] = "0123FBIW,,,\n\n 00F0,0B0,1F01B0";
    uint64_t state = 88172645463325252u;
    for (int k = 0; k < 20000; k++) {
        char text[48];
        int length = 1 + (int)(state % (sizeof text - 1));
        for (int i = 0; i < length - 1; i++) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            text[i] = letters[state % (sizeof letters - 1)];
        }
        text[length - 1] = 0;
        struct pipeline p;
        struct err err = {0};
        if (open_text(&p, text, &err) == 0) {
            CHECK_OK(pipeline_validate(&p, &err), err);
            pipeline_close(&p);
        } else {
            CHECK(err.text[0] != 0);
        }
    }
}

static struct pipeline_times equal_costs(const struct pipeline *p) {
    struct pipeline_costs costs = {.forward = 1, .input = 1, .weight = 1};
    struct pipeline_times times;
    struct err err = {0};
    CHECK_OK(pipeline_simulate(p, &costs, &times, &err), err);
    return times;
}

TEST(terminal_drawing) {
    struct pipeline p;
    struct text text = {0};
    struct err err = {0};
    CHECK_OK(open_text(&p, "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", &err), err);
    struct pipeline_times t = equal_costs(&p); // 9 units
    CHECK_EQ_INT(pipeline_draw_terminal(&p, &t, 7 + 27, false, &text), 0);
    CHECK_STR(text.data, "rank 0 F0-F1-      B0----   B1----\n"
                         "rank 1    F0-B0----F1-B1----      \n");
    text.size = 0;
    CHECK_EQ_INT(pipeline_draw_terminal(&p, &t, 7 + 9, false, &text), 0);
    CHECK_STR(text.data, "rank 0 FF  B0 B1\n"
                         "rank 1  FB0FB1  \n");
    text.size = 0;
    CHECK_EQ_INT(pipeline_draw_terminal(&p, &t, 7 + 27, true, &text), 0);
    CHECK_CONTAINS(text.data, "\033[48;5;68;38;5;231mF0 ");
    CHECK_CONTAINS(text.data, "\033[0m\n");
    text_free(&text);
    pipeline_times_free(&t);
    pipeline_close(&p);
}

TEST(terminal_drawing_of_several_stages) {
    struct pipeline p;
    struct text text = {0};
    struct err err = {0};
    CHECK_OK(open_text(&p, "0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n", &err), err);
    struct pipeline_times t = equal_costs(&p); // 12 units
    CHECK_EQ_INT(pipeline_draw_terminal(&p, &t, 7 + 36, false, &text), 0);
    CHECK_STR(text.data, "rank 0 0F0      3F03B0---            0B0---\n"
                         "rank 1    1F02F0         2B0---1B0---      \n");
    text.size = 0;
    CHECK_EQ_INT(pipeline_draw_terminal(&p, &t, 7 + 24, false, &text), 0);
    CHECK_STR(text.data, "rank 0 F0    f0b0--        B0--\n"
                         "rank 1   F0f0      b0--B0--    \n");
    text_free(&text);
    pipeline_times_free(&t);
    pipeline_close(&p);
}

static int count(const char *text, const char *part) {
    int n = 0;
    for (; (text = strstr(text, part)); text += strlen(part)) n++;
    return n;
}

TEST(svg_drawing) {
    struct pipeline p;
    struct text text = {0};
    struct err err = {0};
    struct pipeline_shape shape = {PIPELINE_ZB_V, 4, 0, 8, 0, false, false};
    CHECK_OK(pipeline_open(&p, &shape, &err), err);
    struct pipeline_times t = equal_costs(&p);
    CHECK_EQ_INT(pipeline_draw_svg(&p, &t, "a < b & c", &text), 0);
    CHECK(text.size < 60000);
    CHECK_CONTAINS(text.data, "<title>a &lt; b &amp; c</title>");
    CHECK_EQ_INT(count(text.data, "<svg"), 1);
    CHECK_EQ_INT(count(text.data, "</svg>\n"), 1);
    CHECK_EQ_INT(count(text.data, "<g"), count(text.data, "</g>"));
    CHECK_EQ_INT(count(text.data, "<text"), count(text.data, "</text>"));
    // 4 ranks x 2 stages x 8 micro-batches x 3 boxes, each with its number.
    CHECK_EQ_INT(count(text.data, "v30h"), 192 + 4);
    CHECK_EQ_INT(count(strstr(text.data, "<g class=\"m\">"), "<text"), 192 + 1);
    CHECK_CONTAINS(text.data, "prefers-color-scheme:dark");
    CHECK_CONTAINS(text.data, "weight half");
    CHECK(!strstr(text.data, ">backward<"));
    text_free(&text);
    pipeline_times_free(&t);
    pipeline_close(&p);
}
