// A list for schedules that papers measure and the engine has no generator for. See
// validate_parts.h.
#include "plan/validate_parts.h"
#include <math.h>
#include <stdlib.h>

struct greedy {
    int ranks, micro_batches, limit;
    int *forwards, *inputs, *weights; // [ranks] done so far
    int *now;                         // [ranks] in units of equal halves
    int *forward_end, *input_end;     // [ranks x micro_batches]; -1: not done
    struct text *list;                // [ranks] cells
};
struct choice {
    int begin, rank;
    char kind; // 0: none
};

static int at(const struct greedy *g, const int *ends, int rank, int micro_batch) {
    return ends[rank * g->micro_batches + micro_batch];
}

static void consider(struct choice *best, int rank, char kind, int begin) {
    if (best->kind && begin >= best->begin) return;
    *best = (struct choice){begin, rank, kind};
}

static int later(int a, int b) {
    return a > b ? a : b;
}

// What the rank would do first; of two that could begin at once the earlier asked for.
static struct choice next_of(const struct greedy *g, int r) {
    struct choice best = {0};
    if (g->inputs[r] < g->forwards[r]) {
        int there = r == g->ranks - 1 ? at(g, g->forward_end, r, g->inputs[r])
                                      : at(g, g->input_end, r + 1, g->inputs[r]);
        if (there >= 0) consider(&best, r, 'I', later(g->now[r], there));
    }
    if (g->forwards[r] < g->micro_batches && g->forwards[r] - g->weights[r] < g->limit) {
        int there = r == 0 ? 0 : at(g, g->forward_end, r - 1, g->forwards[r]);
        if (there >= 0) consider(&best, r, 'F', later(g->now[r], there));
    }
    if (g->weights[r] < g->inputs[r]) consider(&best, r, 'W', g->now[r]);
    return best;
}

static int perform(struct greedy *g, struct choice c) {
    int *done = c.kind == 'F' ? g->forwards : c.kind == 'I' ? g->inputs : g->weights;
    int micro_batch = done[c.rank]++;
    g->now[c.rank] = c.begin + 1;
    if (c.kind == 'F') g->forward_end[c.rank * g->micro_batches + micro_batch] = g->now[c.rank];
    if (c.kind == 'I') g->input_end[c.rank * g->micro_batches + micro_batch] = g->now[c.rank];
    struct text *list = &g->list[c.rank];
    return text_printf(list, "%s%d%c%d", list->size ? "," : "", c.rank, c.kind, micro_batch);
}

static int run(struct greedy *g) {
    for (int left = 3 * g->ranks * g->micro_batches; left > 0; left--) {
        struct choice best = {0};
        for (int r = 0; r < g->ranks; r++) {
            struct choice c = next_of(g, r);
            if (c.kind) consider(&best, r, c.kind, c.begin);
        }
        if (!best.kind || perform(g, best) != 0) return -1;
    }
    return 0;
}

char *validate_zb_2p(int ranks, int micro_batches) {
    size_t n = (size_t)ranks, cells = n * (size_t)micro_batches;
    int *room = calloc(4 * n + 2 * cells, sizeof *room);
    struct text *lists = calloc(n, sizeof *lists), all = {0};
    int result = room && lists ? 0 : -1;
    if (result == 0) {
        struct greedy g = {.ranks = ranks,
                           .micro_batches = micro_batches,
                           .limit = 2 * ranks,
                           .forwards = room,
                           .inputs = room + n,
                           .weights = room + 2 * n,
                           .now = room + 3 * n,
                           .forward_end = room + 4 * n,
                           .input_end = room + 4 * n + cells,
                           .list = lists};
        for (size_t i = 0; i < 2 * cells; i++) g.forward_end[i] = -1;
        result = run(&g);
        for (size_t r = 0; r < n && result == 0; r++)
            result = text_printf(&all, "%s\n", lists[r].data);
    }
    for (size_t r = 0; lists && r < n; r++) text_free(&lists[r]);
    free(lists);
    free(room);
    if (result == 0) return all.data;
    text_free(&all);
    return NULL;
}
