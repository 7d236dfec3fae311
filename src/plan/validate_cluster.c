// The machines and the program of a published row. See validate_parts.h.
#include "plan/validate_parts.h"
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct validate_cluster {
    char name[96];
    struct cluster cluster;
};

void validate_tools_free(struct validate_tools *tools) {
    for (int i = 0; i < tools->stack_count; i++) free(tools->stacks[i]);
    free(tools->stacks);
    free(tools->clusters);
    *tools = (struct validate_tools){0};
}

static const struct cluster *find_cluster(struct validate_tools *tools, const char *name,
                                          struct err *err) {
    for (int i = 0; i < tools->cluster_count; i++)
        if (strcmp(tools->clusters[i].name, name) == 0) return &tools->clusters[i].cluster;
    size_t count = (size_t)tools->cluster_count + 1;
    struct validate_cluster *grown = realloc(tools->clusters, count * sizeof *grown);
    if (!grown) {
        err_set(err, ERR_MEMORY, "no memory for a cluster");
        return NULL;
    }
    tools->clusters = grown;
    struct validate_cluster *c = &grown[tools->cluster_count];
    if (catalogue_cluster(tools->catalogue, name, &c->cluster, err) != 0) return NULL;
    snprintf(c->name, sizeof c->name, "%s", name);
    tools->cluster_count++;
    return &c->cluster;
}

// "A100" with 40 GB -> "a100-40".
static void accelerator_name(const struct published *row, char out[64]) {
    char plain[40];
    size_t n = 0;
    for (const char *at = row->gpu; *at && n + 1 < sizeof plain; at++)
        if (isalnum((unsigned char)*at)) plain[n++] = (char)tolower((unsigned char)*at);
    plain[n] = 0;
    double gb = row->gpu_memory_gb;
    const char *end = "";
    if (strcmp(plain, "a100") == 0)
        end = gb > 0 && gb < 64 ? "-40" : "-80";
    else if (strcmp(plain, "h100") == 0)
        end = gb > 90 ? "-hbm2e" : "-sxm";
    snprintf(out, 64, "%s%s", plain, end);
}

int published_cluster(const struct published *row, const struct publisher *publisher,
                      struct validate_tools *tools, struct cluster *out, struct err *err) {
    char name[64];
    accelerator_name(row, name);
    const struct cluster *found = NULL;
    if (publisher->cluster) {
        found = find_cluster(tools, publisher->cluster, err);
        if (!found) return -1;
        // A publisher's rows on other accelerators stand in that one's usual nodes
        if (strcmp(found->accelerator.name, name) != 0) found = NULL;
    }
    if (!found) found = find_cluster(tools, name, err);
    if (!found) return -1;
    if (found->domain > found->per_node) { // a rack: its part follows from the number of GPUs
        char counted[96];
        snprintf(counted, sizeof counted, "%s:%d", name, row->gpus);
        found = find_cluster(tools, counted, err);
        if (!found) return -1;
    }
    *out = *found;
    if (row->per_node > 0 && row->per_node != out->per_node) {
        if (out->domain == out->per_node) out->domain = row->per_node;
        out->per_node = row->per_node;
        if (out->domain < out->per_node) out->domain = out->per_node;
    }
    out->nodes = (row->gpus + out->per_node - 1) / out->per_node;
    if (row->link_gbits > 0) out->slow.bandwidth.value = row->link_gbits * 1e9 / 8;
    return 0;
}

const struct stack *published_stack(const struct published *row, const struct publisher *publisher,
                                    struct validate_tools *tools, struct err *err) {
    const struct stack *stack = catalogue_stack(tools->catalogue, publisher->stack, err);
    if (!stack || row->flash < 0 || stack->flash_attention == (row->flash == 1)) return stack;
    for (int i = 0; i < tools->stack_count; i++)
        if (strcmp(tools->stacks[i]->name, stack->name) == 0) return tools->stacks[i];
    size_t count = (size_t)tools->stack_count + 1;
    struct stack **grown = realloc(tools->stacks, count * sizeof *grown);
    struct stack *variant = grown ? malloc(sizeof *variant) : NULL;
    if (grown) tools->stacks = grown;
    if (!variant) {
        err_set(err, ERR_MEMORY, "no memory for a stack");
        return NULL;
    }
    *variant = *stack;
    variant->flash_attention = row->flash == 1;
    return tools->stacks[tools->stack_count++] = variant;
}
