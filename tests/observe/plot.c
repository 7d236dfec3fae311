// Plots: what is read from a journal, ticks, the two kinds of pictures, their bounds.
#include "observe/plot.h"
#include "test.h"
#include <math.h>
#include <string.h>

static const char journal[] = "{\"step\":1,\"loss\":4.0,\"learning_rate\":0.1}\n"
                              "{\"event\":\"checkpoint\",\"step\":1,\"loss\":99}\n"
                              "{\"step\":2,\"loss\":null}\n"
                              "{\"step\":3,\"loss\":2.0,\"learning_rate\":0.3}\n"
                              "{\"event\":\"evaluation\",\"step\":3,\"loss\":2.5}\n"
                              "{\"step\":4,\"loss\":1.";

static void free_plot(struct plot *p) {
    plot_series_free(&p->main);
    plot_series_free(&p->marks);
}

TEST(plot_reads_steps_and_evaluations) {
    struct err err = {0};
    struct plot p = {.title = "t", .x_label = "step", .y_label = "loss"};
    CHECK_OK(plot_read(&p, journal, strlen(journal), "m", "loss", &err), err);
    CHECK_EQ_INT(p.main.count, 2); // no null, no other event, no line that is not whole
    CHECK_CLOSE(p.main.x[1], 3, 0);
    CHECK_CLOSE(p.main.y[1], 2, 0);
    CHECK_EQ_INT(p.marks.count, 1);
    CHECK_CLOSE(p.marks.y[0], 2.5, 0);
    free_plot(&p);
    CHECK_OK(plot_read(&p, journal, strlen(journal), "m", "learning_rate", &err), err);
    CHECK_EQ_INT(p.main.count, 2);
    CHECK_EQ_INT(p.marks.count, 0);
    free_plot(&p);
}

TEST(plot_refuses_what_it_cannot_read) {
    struct err err = {0};
    struct plot p = {.title = "t"};
    CHECK_EQ_INT(plot_read(&p, journal, strlen(journal), "m.jsonl", "lss", &err), -1);
    CHECK_CONTAINS(err.text, "m.jsonl: no line has a number \"lss\"");
    err = (struct err){0};
    const char broken[] = "{\"step\":1,\"loss\":1}\nnonsense\n";
    CHECK_EQ_INT(plot_read(&p, broken, strlen(broken), "m.jsonl", "loss", &err), -1);
    CHECK_CONTAINS(err.text, "line 2");
    free_plot(&p);
    struct plot empty = {.title = "empty"};
    struct text out = {0};
    err = (struct err){0};
    CHECK_EQ_INT(plot_svg(&empty, &out, &err), -1);
    CHECK_CONTAINS(err.text, "no point to draw");
    err = (struct err){0};
    CHECK_EQ_INT(plot_terminal(&empty, 10, 3, false, &out, &err), -1);
    CHECK_CONTAINS(err.text, "expected at least");
}

TEST(plot_ticks_are_round) {
    double first, step;
    plot_ticks(2.13, 7.9, 6, &first, &step);
    CHECK_CLOSE(first, 3, 1e-12);
    CHECK_CLOSE(step, 1, 1e-12);
    plot_ticks(-0.012, 0.031, 5, &first, &step);
    CHECK_CLOSE(step, 0.01, 1e-12);
    CHECK_CLOSE(first, -0.01, 1e-9);
    plot_ticks(0, 1834, 8, &first, &step);
    CHECK_CLOSE(step, 200, 1e-9);
}

static void long_run(struct plot *p, int steps) {
    *p = (struct plot){.title = "a & b < c", .x_label = "step", .y_label = "loss"};
    p->main.name = "training";
    p->marks.name = "validation";
    for (int i = 1; i <= steps; i++) {
        CHECK_EQ_INT(plot_series_put(&p->main, i, 3 + 5 * exp(-i / (0.1 * steps)) + 0.1 * sin(i)),
                     0);
        if (i % (steps / 10) == 0)
            CHECK_EQ_INT(plot_series_put(&p->marks, i, 3.2 + 5 * exp(-i / (0.1 * steps))), 0);
    }
    plot_series_put(&p->main, steps + 1, NAN); // left out
}

TEST(plot_svg_is_small_whatever_the_run) {
    struct err err = {0};
    for (int steps = 100; steps <= 1000000; steps *= 100) {
        struct plot p;
        struct text out = {0};
        long_run(&p, steps);
        CHECK_OK(plot_svg(&p, &out, &err), err);
        CHECK(out.size < 60000);
        CHECK(strncmp(out.data, "<svg xmlns", 10) == 0);
        CHECK_CONTAINS(out.data, "a &amp; b &lt; c");
        CHECK_CONTAINS(out.data, "prefers-color-scheme:dark");
        CHECK_CONTAINS(out.data, ">validation</text>");
        CHECK(strstr(out.data, "nan") == NULL);
        CHECK_STR(out.data + out.size - 7, "</svg>\n");
        text_free(&out);
        free_plot(&p);
    }
}

// Rows of dots of a falling curve go down from left to right.
TEST(plot_terminal_draws_within_its_bounds) {
    struct err err = {0};
    struct plot p;
    struct text out = {0};
    long_run(&p, 500);
    CHECK_OK(plot_terminal(&p, 80, 20, false, &out, &err), err);
    CHECK_EQ_INT(text_utf8_valid_prefix(out.data, out.size), out.size);
    CHECK(strchr(out.data, '\033') == NULL);
    int lines = 0, marks = 0;
    for (char *line = strtok(out.data, "\n"); line; line = strtok(NULL, "\n"), lines++) {
        int width = 0;
        for (const char *c = line; *c; c++) width += ((unsigned char)*c & 0xC0) != 0x80;
        CHECK(width <= 80);
        for (const char *c = line; lines > 0 && (c = strstr(c, "\xE2\x97\x8F")) != NULL; c++)
            marks++;
    }
    CHECK_EQ_INT(lines, 20);
    CHECK_EQ_INT(marks, 10);
    text_free(&out);
    struct text coloured = {0};
    CHECK_OK(plot_terminal(&p, 80, 20, true, &coloured, &err), err);
    CHECK(strchr(coloured.data, '\033') != NULL);
    text_free(&coloured);
    free_plot(&p);
}

TEST(plot_terminal_refuses_sizes_out_of_bounds) {
    static const int sizes[][2] = {{2147483647, 20}, {80, 2147483647}, {100000, 100000}, {5, 20}};
    struct err err = {0};
    struct plot p;
    struct text out = {0};
    long_run(&p, 50);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++, err = (struct err){0}) {
        CHECK_EQ_INT(plot_terminal(&p, sizes[i][0], sizes[i][1], false, &out, &err), -1);
        CHECK_EQ_INT(err.kind, ERR_USAGE);
    }
    text_free(&out);
    free_plot(&p);
}

TEST(plot_of_one_point) {
    struct err err = {0};
    struct plot p = {.title = "one", .x_label = "step", .y_label = "loss"};
    p.main.name = "training";
    struct text out = {0};
    CHECK_EQ_INT(plot_series_put(&p.main, 1, 3), 0);
    CHECK_OK(plot_terminal(&p, 60, 12, false, &out, &err), err);
    CHECK_OK(plot_svg(&p, &out, &err), err);
    CHECK(strstr(out.data, "nan") == NULL && strstr(out.data, "inf") == NULL);
    text_free(&out);
    free_plot(&p);
}
