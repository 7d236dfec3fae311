// weft plot: a curve of a run, in the terminal and as SVG.
#include "base/file.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "observe/plot.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const char usage[] =
    "usage: weft plot RUN [options]\n"
    "\n"
    "Draws a figure of a run over its steps. RUN is a run folder or a metrics.jsonl.\n"
    "\n"
    "  --key NAME     which figure of metrics.jsonl (loss); learning_rate, grad_norm, mfu,\n"
    "                 tokens_per_second, bits_per_byte (of evaluations), ...\n"
    "  --svg FILE     writes a picture instead of drawing in the terminal\n"
    "  --title TEXT   default: the name of the run\n"
    "  --columns N    width in characters (the terminal's)\n"
    "  --rows N       height in characters (20)\n";

struct plot_arguments {
    const char *key, *svg, *title;
    int columns, rows;
};

static int terminal_columns(void) {
    struct winsize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 40)
        return size.ws_col < 120 ? size.ws_col : 120;
    return 80;
}

static int read_run(struct plot *plot, const char *run, const char *key, struct err *err) {
    char path[4096], *text;
    size_t bytes;
    if (!file_is_folder(run))
        snprintf(path, sizeof path, "%s", run);
    else if (file_join(path, sizeof path, run, "metrics.jsonl", err) != 0)
        return -1;
    if (file_read(path, 0, &text, &bytes, err) != 0) return -1;
    int result = plot_read(plot, text, bytes, path, key, err);
    free(text);
    return result;
}

static int draw(const struct plot *plot, const struct plot_arguments *a, struct err *err) {
    struct text out = {0};
    int result;
    if (a->svg) {
        result = plot_svg(plot, &out, err);
        if (result == 0) result = file_replace(a->svg, out.data, out.size, err);
    } else {
        result = plot_terminal(plot, a->columns ? a->columns : terminal_columns(), a->rows,
                               isatty(STDOUT_FILENO), &out, err);
        if (result == 0) fwrite(out.data, 1, out.size, stdout);
    }
    text_free(&out);
    return result;
}

int verb_plot(int argc, char **argv) {
    struct plot_arguments a = {.key = "loss", .rows = 20};
    const struct option options[] = {
        {"--key", OPTION_TEXT, &a.key, 0},     {"--svg", OPTION_TEXT, &a.svg, 0},
        {"--title", OPTION_TEXT, &a.title, 0}, {"--columns", OPTION_COUNT, &a.columns, 1},
        {"--rows", OPTION_COUNT, &a.rows, 1},
    };
    struct err err = {0};
    const char *path = NULL;
    int words;
    int got = options_read(argc, argv, options, sizeof options / sizeof options[0], &path, 1,
                           &words, &err);
    if (got > 0) {
        fputs(usage, stdout);
        return 0;
    }
    struct plot plot = {.x_label = "step", .y_label = a.key};
    plot.main.name = "training";
    plot.marks.name = "validation";
    if (got == 0 && !path)
        got = err_set(&err, ERR_USAGE, "plot: a run is needed; weft plot --help");
    plot.title = a.title ? a.title : path;
    if (got == 0) got = read_run(&plot, path, a.key, &err);
    if (got == 0) got = draw(&plot, &a, &err);
    plot_series_free(&plot.main);
    plot_series_free(&plot.marks);
    return got == 0 ? 0 : cli_fail(&err);
}
