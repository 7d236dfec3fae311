// `weft layout --json`: the same facts for programs, see layout_view.h. Groups are listed in full.
#include "cli/layout_view.h"
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static json_t *ranges(const int *ranks, int count) {
    struct text text = {0};
    json_t *value =
        layout_ranges(&text, ranks, count, INT_MAX) == 0 ? json_string(text.data) : NULL;
    text_free(&text);
    return value;
}

static json_t *world(const struct layout_view *v) {
    const struct mesh *mesh = &v->layout.mesh;
    json_t *out = json_object(), *order = json_array();
    json_object_set_new(out, "ranks", json_integer(v->ranks));
    for (int axis = 0; axis < MESH_AXES; axis++)
        json_object_set_new(out, mesh_axis_name((enum mesh_axis)axis),
                            json_integer(mesh->size[axis]));
    json_object_set_new(out, "ep", json_integer(mesh->ep));
    json_object_set_new(out, "shard", json_integer(mesh->shard));
    json_object_set_new(out, "zero", json_integer(v->layout.zero));
    json_object_set_new(out, "sequence_parallel", json_boolean(v->layout.sequence_parallel));
    for (int i = 0; i < MESH_AXES; i++)
        json_array_append_new(order, json_string(mesh_axis_name(mesh->order[i])));
    json_object_set_new(out, "order", order);
    json_object_set_new(out, "ranks_per_host", json_integer(v->ranks_per_host));
    json_object_set_new(out, "parameters", json_integer(v->parameters));
    return out;
}

static json_t *warnings(const struct layout_view *v) {
    struct text text = {0};
    json_t *out = layout_warnings(&text, v) == 0 ? json_array() : NULL;
    for (char *line = text.data, *end; out && line && *line; line = end + 1) {
        end = strchr(line, '\n');
        json_array_append_new(out, json_stringn(line, (size_t)(end - line)));
    }
    text_free(&text);
    return out;
}

static json_t *stages(const struct layout_view *v) {
    json_t *out = json_array();
    int count = layout_stages(&v->layout);
    for (int stage = 0; stage < count; stage++) {
        json_t *one = json_object();
        json_object_set_new(one, "stage", json_integer(stage));
        json_object_set_new(one, "pp", json_integer(layout_stage_rank(&v->layout, stage)));
        json_object_set_new(one, "first_layer", json_integer(v->layout.layer_first[stage]));
        json_object_set_new(
            one, "layers",
            json_integer(v->layout.layer_first[stage + 1] - v->layout.layer_first[stage]));
        json_object_set_new(one, "embedding", json_boolean(stage == 0));
        json_object_set_new(one, "head", json_boolean(stage == count - 1));
        json_array_append_new(out, one);
    }
    return out;
}

static json_t *states(const struct state_bytes *s) {
    const struct {
        const char *name;
        uint64_t value;
    } fields[] = {{"matrix_elements", (uint64_t)s->matrices},
                  {"shard_elements", (uint64_t)s->shard},
                  {"vector_elements", (uint64_t)s->vectors},
                  {"weights_bytes", s->weights},
                  {"gradients_bytes", s->gradients},
                  {"masters_bytes", s->masters},
                  {"moments_bytes", s->moments},
                  {"vectors_bytes", s->vector_bytes},
                  {"transient_bytes", s->transient}};
    json_t *out = json_object();
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        json_object_set_new(out, fields[i].name, json_integer((json_int_t)fields[i].value));
    return out;
}

static json_t *kinds(const struct layout_view *v) {
    json_t *out = json_array();
    for (int i = 0; i < v->kind_count; i++) {
        const struct kind_view *k = &v->kinds[i];
        json_t *one = json_object(), *zero = json_array();
        json_object_set_new(one, "first_pp", json_integer(k->first_pp));
        json_object_set_new(one, "last_pp", json_integer(k->last_pp));
        json_object_set_new(one, "layers", json_integer(k->local.model.config.layers));
        json_object_set_new(one, "parameters", json_integer(k->parameters));
        for (int stage = 0; stage < ZERO_STAGES; stage++)
            json_array_append_new(zero, states(&k->states[stage]));
        json_object_set_new(one, "zero", zero);
        json_array_append_new(out, one);
    }
    return out;
}

static json_t *groups(const struct layout_view *v) {
    json_t *out = json_object();
    for (int kind = 0; kind < GROUP_KIND_COUNT; kind++) {
        const struct group_view *g = &v->groups[kind];
        if (!layout_group_exists(v, (enum mesh_group_kind)kind)) continue;
        json_t *one = json_object(), *members = json_array();
        json_object_set_new(one, "size", json_integer(g->size));
        json_object_set_new(one, "count", json_integer(g->count));
        json_object_set_new(one, "hosts", json_integer(g->most_hosts));
        json_object_set_new(one, "rails", json_boolean(g->keeps_rails));
        for (int i = 0; i < g->count; i++)
            json_array_append_new(members, ranges(g->members + (int64_t)i * g->size, g->size));
        json_object_set_new(one, "members", members);
        json_object_set_new(out, mesh_group_name((enum mesh_group_kind)kind), one);
    }
    return out;
}

static json_t *roles(const struct layout_view *v) {
    json_t *out = json_array();
    for (int i = 0; i < v->role_count; i++) {
        const struct role_view *r = &v->roles[i];
        json_t *one = json_object(), *sums = json_array();
        json_object_set_new(one, "name", json_string(r->name));
        json_object_set_new(one, "cut", json_string(layout_cut_text(v, r->first)));
        if (r->partial != GROUP_KIND_COUNT)
            json_array_append_new(sums, json_string(mesh_group_name(r->partial)));
        if (r->tied_sum) json_array_append_new(sums, json_string("first and last stage"));
        json_array_append_new(sums, json_string(mesh_group_name(r->sum)));
        json_object_set_new(one, "summed_over", sums);
        json_array_append_new(out, one);
    }
    return out;
}

static json_t *rank_groups(const struct layout_view *v, int rank) {
    json_t *out = json_object();
    for (int kind = 0; kind < GROUP_KIND_COUNT; kind++) {
        const struct group_view *g = &v->groups[kind];
        if (!layout_group_exists(v, (enum mesh_group_kind)kind)) continue;
        int index = 0;
        while (g->members[index] != rank) index++;
        json_t *one = json_object();
        json_object_set_new(one, "index", json_integer(index % g->size));
        json_object_set_new(one, "members",
                            ranges(g->members + index / g->size * g->size, g->size));
        json_object_set_new(out, mesh_group_name((enum mesh_group_kind)kind), one);
    }
    return out;
}

static json_t *one_rank(const struct layout_view *v, int rank, struct err *err) {
    struct local_model local;
    if (layout_local(&local, &v->whole, &v->layout, rank, err) != 0) return NULL;
    json_t *out = json_object(), *params = json_array();
    int64_t elements = 0;
    json_object_set_new(out, "rank", json_integer(rank));
    json_object_set_new(out, "host", json_integer(rank / v->ranks_per_host));
    for (int axis = 0; axis < MESH_AXES; axis++)
        json_object_set_new(out, mesh_axis_name((enum mesh_axis)axis),
                            json_integer(local.at[axis]));
    for (int i = 0; i < local.model.param_count; i++) {
        const struct param *p = &local.model.params[i];
        json_t *one = json_object();
        json_object_set_new(one, "name", json_string(p->name));
        json_object_set_new(one, "rows", json_integer(p->rows));
        json_object_set_new(one, "columns", json_integer(p->columns));
        json_object_set_new(one, "first_row", json_integer(local.slices[i].row[0]));
        json_object_set_new(one, "first_column", json_integer(local.slices[i].column));
        json_object_set_new(one, "copies", json_integer(local.slices[i].copies));
        json_array_append_new(params, one);
        elements += param_elements(p);
    }
    json_object_set_new(out, "parameters", json_integer(elements));
    json_object_set_new(out, "groups", rank_groups(v, rank));
    json_object_set_new(out, "tensors", params);
    local_model_free(&local);
    return out;
}

int layout_print_json(struct text *out, const struct layout_view *view, int rank, struct err *err) {
    json_t *root = json_object(), *one = NULL;
    json_object_set_new(root, "world", world(view));
    json_object_set_new(root, "warnings", warnings(view));
    if (rank >= 0 && !(one = one_rank(view, rank, err))) {
        json_decref(root);
        return -1;
    }
    if (one) {
        json_object_set_new(root, "rank", one);
    } else {
        json_object_set_new(root, "stages", stages(view));
        json_object_set_new(root, "kinds", kinds(view));
        json_object_set_new(root, "groups", groups(view));
        json_object_set_new(root, "parameters", roles(view));
    }
    char *text = json_dumps(root, JSON_INDENT(1));
    json_decref(root);
    int result = text ? text_printf(out, "%s\n", text) : -1;
    free(text);
    return result == 0 ? 0 : err_set(err, ERR_MEMORY, "no memory for the text");
}
