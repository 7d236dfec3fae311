// Gathers what `weft layout` prints, see layout_view.h.
#include "cli/layout_view.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- groups

static int compare_ints(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

// Whether a group has the same places on each of its hosts, and on how many hosts it lies.
// `sorted`: room for the members.
static bool look_at_hosts(const int *members, int size, int per_host, int *sorted, int *hosts) {
    memcpy(sorted, members, sizeof *members * (size_t)size);
    qsort(sorted, (size_t)size, sizeof *sorted, compare_ints);
    int on_first = 1;
    *hosts = 1;
    while (on_first < size && sorted[on_first] / per_host == sorted[0] / per_host) on_first++;
    bool rails = size % on_first == 0;
    for (int i = on_first; i < size; i++) {
        *hosts += sorted[i] / per_host != sorted[i - 1] / per_host;
        rails = rails && sorted[i] % per_host == sorted[i % on_first] % per_host &&
                sorted[i] / per_host == sorted[i - i % on_first] / per_host;
    }
    return rails;
}

static int view_group(struct layout_view *v, enum mesh_group_kind kind, struct err *err) {
    const struct mesh *mesh = &v->layout.mesh;
    struct group_view *g = &v->groups[kind];
    int kv = v->config->model.kv_heads, index;
    g->size = mesh_group_size(mesh, kind, kv);
    g->members = calloc((size_t)v->ranks, sizeof *g->members);
    int *sorted = calloc((size_t)g->size, sizeof *sorted);
    if (!g->members || !sorted) {
        free(sorted);
        return err_set(err, ERR_MEMORY, "no memory for the groups of %d ranks", v->ranks);
    }
    g->keeps_rails = true;
    for (int rank = 0; rank < v->ranks; rank++) {
        if (!mesh_group_leads(mesh, rank, kind, kv)) continue;
        int *members = g->members + (int64_t)g->count++ * g->size, hosts;
        mesh_group(mesh, rank, kind, kv, members, &index);
        g->keeps_rails =
            look_at_hosts(members, g->size, v->ranks_per_host, sorted, &hosts) && g->keeps_rails;
        if (hosts > g->most_hosts) g->most_hosts = hosts;
    }
    free(sorted);
    return 0;
}

// ---- what ranks hold

static int view_states(const struct layout_view *v, const struct local_model *local, int zero,
                       struct state_bytes *out, struct err *err) {
    const struct train_config *c = v->config;
    struct engine_parallel p;
    struct layout layout = v->layout;
    struct flat flat;
    layout.zero = zero;
    config_parallel(c, &p);
    struct flat_options options = flat_options_for(&layout, local->rank, p.bucket_bytes);
    struct rank_shape shape = {.compute = c->precision == PRECISION_BF16 ? DTYPE_BF16 : DTYPE_F32,
                               .train = true,
                               .tokens =
                                   (int64_t)c->micro_batch * c->context / layout.mesh.size[MESH_CP],
                               .tp = layout.mesh.size[MESH_TP],
                               .micro_batches = config_micro_batches(c),
                               .context = c->context,
                               .flat = &flat,
                               .zero = zero,
                               .ranks = {options.ranks[FLAT_DENSE], options.ranks[FLAT_EXPERT]},
                               .ep = layout.mesh.ep,
                               .reduce_per_micro_batch = p.reduce_per_micro_batch,
                               .gather_type = p.gather_type,
                               .reduce_type = p.reduce_type,
                               .accumulate_type = p.accumulate_type,
                               .gathers_in_flight = p.gathers_in_flight};
    options.by_unit = p.reduce_per_micro_batch || p.accumulate_type == DTYPE_BF16;
    if (flat_open(&flat, local, &options, err) != 0) return -1;
    int result = state_bytes(out, local, &shape, err);
    flat_close(&flat);
    return result;
}

// Same sizes, whatever the numbers of the layers.
static bool same_kind(const struct kind_view *a, const struct kind_view *b) {
    if (a->parameters != b->parameters || a->local.stage_count != b->local.stage_count)
        return false;
    for (int i = 0; i < a->local.stage_count; i++) {
        const struct stage_part *s = &a->local.stages[i], *t = &b->local.stages[i];
        if (s->layer_count != t->layer_count || s->first != t->first || s->last != t->last)
            return false;
    }
    return memcmp(a->states, b->states, sizeof a->states) == 0;
}

static int view_kind(struct layout_view *v, int pp, struct kind_view *kind, struct err *err) {
    int at[MESH_AXES] = {0};
    at[MESH_PP] = pp;
    *kind = (struct kind_view){.first_pp = pp, .last_pp = pp};
    if (layout_local(&kind->local, &v->whole, &v->layout, mesh_rank(&v->layout.mesh, at), err) != 0)
        return -1;
    for (int i = 0; i < kind->local.model.param_count; i++)
        kind->parameters += param_elements(&kind->local.model.params[i]);
    for (int zero = 0; zero < ZERO_STAGES; zero++)
        if (view_states(v, &kind->local, zero, &kind->states[zero], err) != 0) return -1;
    return 0;
}

static int view_kinds(struct layout_view *v, struct err *err) {
    int pp = v->layout.mesh.size[MESH_PP];
    v->kinds = calloc((size_t)pp, sizeof *v->kinds);
    if (!v->kinds) return err_set(err, ERR_MEMORY, "no memory for %d kinds of ranks", pp);
    for (int i = 0; i < pp; i++) {
        struct kind_view *kind = &v->kinds[v->kind_count];
        int result = view_kind(v, i, kind, err);
        if (result == 0 && v->kind_count > 0 && same_kind(kind - 1, kind)) {
            kind[-1].last_pp = i;
            local_model_free(&kind->local);
        } else {
            v->kind_count++;
        }
        if (result != 0) return -1;
    }
    return 0;
}

// ---- roles of parameters

// "layers.17.mlp.up.weight" -> "layers.*.mlp.up.weight"
static void generic_name(const char *name, char out[PARAM_NAME_BYTES]) {
    size_t at = 0;
    for (const char *c = name; *c; c++) {
        bool number = isdigit((unsigned char)*c) && (c == name || c[-1] == '.');
        if (number) {
            out[at++] = '*';
            while (isdigit((unsigned char)c[1])) c++;
        } else {
            out[at++] = *c;
        }
    }
    out[at] = 0;
}

static void view_roles(struct layout_view *v) {
    bool seen[PARAM_ROLE_COUNT] = {false};
    int stages = layout_stages(&v->layout);
    bool apart = layout_stage_rank(&v->layout, stages - 1) != layout_stage_rank(&v->layout, 0);
    for (int i = 0; i < v->whole.param_count; i++) {
        const struct param *p = &v->whole.params[i];
        v->parameters += param_elements(p);
        if (seen[p->role]) continue;
        seen[p->role] = true;
        struct role_view *role = &v->roles[v->role_count++];
        *role = (struct role_view){
            .first = p,
            .sum = layout_gradient_group(p),
            .partial = layout_partial_group(&v->layout, &v->whole.config, p->role),
            .tied_sum = p->role == PARAM_EMBEDDING && v->whole.config.tied_head && apart};
        generic_name(p->name, role->name);
    }
}

// ---- all

// Ranks that a configuration speaks of when no world is given.
static int own_ranks(const struct train_config *c) {
    int64_t ranks = (int64_t)c->pp * c->cp * c->tp * (c->dp > 0 ? c->dp : 1);
    while (c->dp == 0 && ranks < 1 << 22 &&
           ranks / c->pp / c->tp % c->ep != 0) // the experts need some replicas
        ranks += (int64_t)c->pp * c->cp * c->tp;
    return ranks < 1 << 22 ? (int)ranks : 1 << 22;
}

int layout_view_open(struct layout_view *view, struct train_config *config, int ranks,
                     int ranks_per_host, struct err *err) {
    struct layout_view v = {.config = config,
                            .ranks = ranks > 0 ? ranks : own_ranks(config),
                            .ranks_per_host = ranks_per_host};
    if (config_layout(config, v.ranks, &v.layout, err) != 0 ||
        model_describe(&v.whole, &config->model, err) != 0)
        return -1;
    view_roles(&v);
    int result = view_kinds(&v, err);
    for (int kind = 0; kind < GROUP_KIND_COUNT && result == 0; kind++)
        result = view_group(&v, (enum mesh_group_kind)kind, err);
    if (result != 0)
        layout_view_close(&v);
    else
        *view = v;
    return result;
}

void layout_view_close(struct layout_view *v) {
    for (int i = 0; i < v->kind_count; i++) local_model_free(&v->kinds[i].local);
    for (int i = 0; i < GROUP_KIND_COUNT; i++) free(v->groups[i].members);
    free(v->kinds);
    model_free(&v->whole);
}

bool layout_group_exists(const struct layout_view *view, enum mesh_group_kind kind) {
    return view->whole.config.experts > 0 || kind < GROUP_EP || kind > GROUP_EXPERT_REPLICA;
}

int layout_ranges(struct text *out, const int *ranks, int count, int pieces) {
    for (int i = 0, end; i < count; i = end, pieces--) {
        int step = i + 1 < count ? ranks[i + 1] - ranks[i] : 0, result;
        for (end = i + 1; end < count && ranks[end] - ranks[end - 1] == step;) end++;
        bool run = step == 1 || (step > 0 && end - i > 2);
        if (!run) end = i + 1;
        if (i > 0 && text_puts(out, ",") != 0) return -1;
        if (pieces == 1 && end < count) return text_puts(out, "...");
        if (run && step == 1)
            result = text_printf(out, "%d-%d", ranks[i], ranks[end - 1]);
        else if (run)
            result = text_printf(out, "%d:%d:%d", ranks[i], ranks[end - 1] + step, step);
        else
            result = text_printf(out, "%d", ranks[i]);
        if (result != 0) return -1;
    }
    return 0;
}

int layout_stage_ranks(struct text *out, const struct layout_view *view, int pp, int pieces) {
    int *ranks = malloc(sizeof *ranks * (size_t)view->ranks), count = 0, at[MESH_AXES];
    if (!ranks) return -1;
    for (int rank = 0; rank < view->ranks; rank++) {
        mesh_at(&view->layout.mesh, rank, at);
        if (at[MESH_PP] == pp) ranks[count++] = rank;
    }
    int result = layout_ranges(out, ranks, count, pieces);
    free(ranks);
    return result;
}

int layout_warnings(struct text *out, const struct layout_view *v) {
    const struct group_view *tp = &v->groups[GROUP_TP];
    if (tp->most_hosts > 1 &&
        text_printf(out,
                    "tp (%d) crosses hosts of %d ranks: its sums stand between any two products "
                    "and then go over the network; put tp last in parallel.order, and let it "
                    "divide the ranks of a host\n",
                    tp->size, v->ranks_per_host) != 0)
        return -1;
    for (int kind = 0; kind < GROUP_KIND_COUNT; kind++)
        if (!v->groups[kind].keeps_rails && v->groups[kind].size > 1 && kind != GROUP_WORLD &&
            text_printf(out,
                        "%s groups have different places on their hosts (no rails): a rank talks "
                        "to ranks on other adapters\n",
                        mesh_group_name((enum mesh_group_kind)kind)) != 0)
            return -1;
    return 0;
}

const char *layout_cut_text(const struct layout_view *view, const struct param *param) {
    if (view->layout.mesh.size[MESH_TP] == 1) return "whole";
    switch (param->axis) {
    case SHARD_COLUMN:
        return "rows over tp";
    case SHARD_ROW:
        return "columns over tp";
    case SHARD_VOCAB:
        return "vocabulary over tp";
    case SHARD_NONE:
        break;
    }
    return "replicated";
}
