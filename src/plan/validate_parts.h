// Inner parts of the validation: what mapping rows to jobs is made of.
#pragma once
#include "plan/validate.h"

// What one look at a table needs again and again; ended by validate_tools_free.
struct validate_tools {
    struct catalogue *catalogue;
    struct validate_cluster *clusters; // looked up by name
    int cluster_count;
    struct stack **stacks; // variants whose attention a row states
    int stack_count;
};
void validate_tools_free(struct validate_tools *tools);

// The accelerator, network and node of a row.
int published_cluster(const struct published *row, const struct publisher *publisher,
                      struct validate_tools *tools, struct cluster *out, struct err *err);
// The stack, with fused attention as the row says.
const struct stack *published_stack(const struct published *row, const struct publisher *publisher,
                                    struct validate_tools *tools, struct err *err);

// A whole number behind `key` in the notes ("GA=", "GradAccum="), or 0.
int published_noted(const struct published *row, const char *key);
bool published_begins(const char *text, const char *with); // a name or a source of a row

// The zero-bubble schedule with twice the memory of 1F1B (ZB-2p of arXiv 2401.10241) as a list that
// pipeline_open_csv reads: each rank does the input half that waits, else a forward while less than
// 2 `ranks` micro-batches are in flight, else a weight half. NULL when memory is short; free() it.
char *validate_zb_2p(int ranks, int micro_batches);
