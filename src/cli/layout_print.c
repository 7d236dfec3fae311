// `weft layout` as text, see layout_view.h.
#include "cli/layout_view.h"
#include <stdio.h>
#include <string.h>

enum { SHOWN_GROUPS = 2, SHOWN_PIECES = 12, SHOWN_RANKS = 64 };

// Collects what does not fit for one check at the end: text_printf leaves the text as it was.
struct page {
    struct text *out;
    const struct layout_view *view;
    bool failed;
};
#define PUT(page, ...)                                                                             \
    ((page)->failed = (text_printf((page)->out, __VA_ARGS__) != 0) || (page)->failed)

static void put_world(struct page *p) {
    const struct layout_view *v = p->view;
    const struct mesh *mesh = &v->layout.mesh;
    char number[32];
    PUT(p, "%s parameters in %d layers\n", text_count(v->parameters, number),
        v->whole.config.layers);
    PUT(p, "%s ranks = pp %d x dp %d x cp %d x tp %d", text_count(v->ranks, number),
        mesh->size[MESH_PP], mesh->size[MESH_DP], mesh->size[MESH_CP], mesh->size[MESH_TP]);
    if (mesh->ep > 1) PUT(p, ", ep %d inside dp x cp", mesh->ep);
    PUT(p, "; rank =");
    int stride = v->ranks;
    for (int i = 0; i < MESH_AXES; i++) {
        stride /= mesh->size[mesh->order[i]];
        if (stride == 1)
            PUT(p, "%s %s", i ? " +" : "", mesh_axis_name(mesh->order[i]));
        else
            PUT(p, "%s %d %s", i ? " +" : "", stride, mesh_axis_name(mesh->order[i]));
    }
    int hosts = (v->ranks + v->ranks_per_host - 1) / v->ranks_per_host;
    PUT(p, "\n%s host%s of %d ranks: host h has the ranks %d h to %d h + %d\n",
        text_count(hosts, number), hosts == 1 ? "" : "s", v->ranks_per_host, v->ranks_per_host,
        v->ranks_per_host, v->ranks_per_host - 1);
    PUT(p, "zero %d, states over %d of dp x cp = %d ranks; sequence parallelism %s\n",
        v->layout.zero, mesh->shard, mesh->size[MESH_DP] * mesh->size[MESH_CP],
        v->layout.sequence_parallel ? "on" : "off");
}

static void put_warnings(struct page *p) {
    struct text lines = {0};
    p->failed = layout_warnings(&lines, p->view) != 0 || p->failed;
    for (char *line = lines.data, *end; line && *line; line = end + 1) {
        end = strchr(line, '\n');
        PUT(p, "warning: %.*s\n", (int)(end - line), line);
    }
    text_free(&lines);
}

static void put_stage(struct page *p, const struct layout_view *v, int stage) {
    int first = v->layout.layer_first[stage], last = v->layout.layer_first[stage + 1] - 1;
    int stages = layout_stages(&v->layout);
    PUT(p, "stage %d: layer%s %d", stage, last > first ? "s" : "", first);
    if (last > first) PUT(p, "-%d", last);
    if (stage == 0) PUT(p, ", embedding");
    if (stage == stages - 1) PUT(p, ", head");
}

// One line for each pipeline index: its ranks and stages.
static void put_stages(struct page *p) {
    const struct layout_view *v = p->view;
    PUT(p, "\nwho holds which layers\n");
    for (int pp = 0; pp < v->layout.mesh.size[MESH_PP]; pp++) {
        PUT(p, "  pp %-3d ranks ", pp);
        p->failed = layout_stage_ranks(p->out, v, pp, SHOWN_PIECES) != 0 || p->failed;
        for (int stage = 0; stage < layout_stages(&v->layout); stage++)
            if (layout_stage_rank(&v->layout, stage) == pp) {
                PUT(p, "; ");
                put_stage(p, v, stage);
            }
        PUT(p, "\n");
    }
}

static void put_coordinates(struct page *p, int rank) {
    int at[MESH_AXES];
    const struct mesh *mesh = &p->view->layout.mesh;
    mesh_at(mesh, rank, at);
    PUT(p, "host %d, pp %d, dp %d, cp %d, tp %d", rank / p->view->ranks_per_host, at[MESH_PP],
        at[MESH_DP], at[MESH_CP], at[MESH_TP]);
    if (mesh->ep > 1) PUT(p, ", ep %d", mesh_data_index(mesh, rank) % mesh->ep);
}

static void put_ranks(struct page *p) {
    if (p->view->ranks > SHOWN_RANKS || p->view->ranks == 1) return;
    PUT(p, "\nwho is where\n");
    for (int rank = 0; rank < p->view->ranks; rank++) {
        PUT(p, "  rank %-3d ", rank);
        put_coordinates(p, rank);
        PUT(p, "\n");
    }
}

static void put_row(struct page *p, const char *name, const uint64_t value[ZERO_STAGES]) {
    char number[32];
    PUT(p, "    %-28s", name);
    for (int zero = 0; zero < ZERO_STAGES; zero++)
        PUT(p, " %18s", text_count((int64_t)value[zero], number));
    PUT(p, "\n");
}

#define ROW(page, kind, name, expression)                                                          \
    do {                                                                                           \
        uint64_t row_[ZERO_STAGES];                                                                \
        for (int z_ = 0; z_ < ZERO_STAGES; z_++) {                                                 \
            const struct state_bytes *s = &(kind)->states[z_];                                     \
            row_[z_] = (uint64_t)(expression);                                                     \
        }                                                                                          \
        put_row(page, name, row_);                                                                 \
    } while (0)

static void put_kind(struct page *p, const struct kind_view *k) {
    const struct layout_view *v = p->view;
    char number[32];
    PUT(p, k->last_pp > k->first_pp ? "  pp %d-%d" : "  pp %d", k->first_pp, k->last_pp);
    PUT(p, ": %d layers, %s parameters a rank\n    %-28s", k->local.model.config.layers,
        text_count(k->parameters, number), "");
    for (int zero = 0; zero < ZERO_STAGES; zero++)
        PUT(p, "           %s zero %d", zero == v->layout.zero ? "*" : " ", zero);
    PUT(p, "\n");
    ROW(p, k, "P (padded matrix elements)", s->matrices);
    ROW(p, k, "shard (of P, elements)", s->shard);
    ROW(p, k, "weights", s->weights);
    ROW(p, k, "gradients", s->gradients);
    ROW(p, k, "masters", s->masters);
    ROW(p, k, "moments", s->moments);
    ROW(p, k, "states of matrices", s->weights + s->gradients + s->masters + s->moments);
    ROW(p, k, "states of vectors", s->vector_bytes);
    ROW(p, k, "transient", s->transient);
}

static void put_kinds(struct page *p) {
    const struct train_config *c = p->view->config;
    char size[32];
    PUT(p,
        "\nstates of a rank in bytes: %s weights, %s gradients, buckets of %s; * is the stage of "
        "this configuration.\nVectors (norms, biases) are whole on every rank; transient: gathered "
        "weights, gradients and messages on their way\n",
        c->precision == PRECISION_BF16 ? "bf16" : "fp32",
        c->accumulate_precision == PRECISION_BF16 ? "bf16" : "fp32",
        text_bytes(c->bucket_bytes, size));
    for (int i = 0; i < p->view->kind_count; i++) put_kind(p, &p->view->kinds[i]);
}

static const char *place_of(const struct group_view *g) {
    return g->size == 1         ? "alone"
           : g->most_hosts == 1 ? "inside a host"
           : g->keeps_rails     ? "between hosts, on rails"
                                : "between hosts";
}

static void put_groups(struct page *p) {
    const struct layout_view *v = p->view;
    PUT(p, "\ngroups (a-b: from a to b; a:b:c: from a in steps of c, below b)\n");
    for (int kind = 0; kind < GROUP_KIND_COUNT; kind++) {
        const struct group_view *g = &v->groups[kind];
        if (!layout_group_exists(v, (enum mesh_group_kind)kind)) continue;
        PUT(p, "  %-15s %6d of %6d rank%s ", mesh_group_name((enum mesh_group_kind)kind), g->count,
            g->size, g->size == 1 ? "  " : "s,");
        PUT(p, g->size == 1 ? "%s" : "%-24s", place_of(g));
        for (int i = 0; i < g->count && i < SHOWN_GROUPS && g->size > 1; i++) {
            PUT(p, "%s ", i ? " |" : "");
            p->failed = layout_ranges(p->out, g->members + (int64_t)i * g->size, g->size,
                                      SHOWN_PIECES) != 0 ||
                        p->failed;
        }
        PUT(p, "%s\n", g->count > SHOWN_GROUPS && g->size > 1 ? " | ..." : "");
    }
}

static void put_roles(struct page *p) {
    const struct layout_view *v = p->view;
    PUT(p,
        "\nparameters, how they are cut, and the groups over which their gradients are summed\n");
    for (int i = 0; i < v->role_count; i++) {
        const struct role_view *r = &v->roles[i];
        PUT(p, "  %-36s %-19s ", r->name, layout_cut_text(v, r->first));
        if (r->partial != GROUP_KIND_COUNT) PUT(p, "%s, then ", mesh_group_name(r->partial));
        if (r->tied_sum) PUT(p, "first and last stage, then ");
        PUT(p, "%s\n", mesh_group_name(r->sum));
    }
}

// ---- one rank

static void put_slice(struct page *p, const struct local_model *local, int i) {
    const struct param *l = &local->model.params[i], *w;
    const struct param_slice *s = &local->slices[i];
    w = &p->view->whole.params[s->whole];
    PUT(p, "  %-40s %lld x %lld of %lld x %lld", l->name, (long long)l->rows, (long long)l->columns,
        (long long)w->rows, (long long)w->columns);
    bool rows = l->rows < w->rows;
    for (int part = 0; part < l->parts && rows; part++)
        PUT(p, "%s%s%srows %lld to %lld", part ? "; " : ": ", l->part_name[part],
            l->parts > 1 ? " " : "", (long long)s->row[part],
            (long long)(s->row[part] + l->part_rows[part] - 1));
    if (l->columns < w->columns)
        PUT(p, ": columns %lld to %lld", (long long)s->column,
            (long long)(s->column + l->columns - 1));
    if (s->copies > 1) PUT(p, ", copy %d of %d", s->copy + 1, s->copies);
    if (s->copies == 1 && s->copies_kv > 1)
        PUT(p, ", k and v copy %d of %d", s->copy_kv + 1, s->copies_kv);
    if (s->tied_copy) PUT(p, ", copy for the head");
    PUT(p, "\n");
}

static int put_rank(struct page *p, int rank, struct err *err) {
    const struct layout_view *v = p->view;
    struct local_model local;
    if (layout_local(&local, &v->whole, &v->layout, rank, err) != 0) return -1;
    PUT(p, "\nrank %d: ", rank);
    put_coordinates(p, rank);
    PUT(p, "\n");
    for (int i = 0; i < local.stage_count; i++) {
        PUT(p, "  ");
        put_stage(p, v, local.stages[i].stage);
        PUT(p, "\n");
    }
    PUT(p, "groups of rank %d\n", rank);
    for (int kind = 0; kind < GROUP_KIND_COUNT; kind++) {
        const struct group_view *g = &v->groups[kind];
        if (!layout_group_exists(v, (enum mesh_group_kind)kind)) continue;
        int index = 0;
        while (g->members[index] != rank) index++;
        PUT(p, "  %-15s number %d of %d: ", mesh_group_name((enum mesh_group_kind)kind),
            index % g->size, g->size);
        p->failed =
            layout_ranges(p->out, g->members + index / g->size * g->size, g->size, g->size) != 0 ||
            p->failed;
        PUT(p, "\n");
    }
    PUT(p, "parameters of rank %d\n", rank);
    for (int i = 0; i < local.model.param_count; i++) put_slice(p, &local, i);
    local_model_free(&local);
    return 0;
}

int layout_print(struct text *out, const struct layout_view *view, int rank, struct err *err) {
    struct page page = {out, view, false};
    put_world(&page);
    put_warnings(&page);
    if (rank >= 0) {
        if (put_rank(&page, rank, err) != 0) return -1;
    } else {
        put_stages(&page);
        put_ranks(&page);
        put_kinds(&page);
        put_groups(&page);
        put_roles(&page);
    }
    return page.failed ? err_set(err, ERR_MEMORY, "no memory for the text") : 0;
}
