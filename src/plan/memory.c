// Dispatch and sums of the memory plan, see memory.h.
#include "plan/memory.h"
#include "plan/memory_parts.h"

const char *plan_memory_item_name(enum plan_memory_item item) {
    static const char *const names[PLAN_ITEMS] = {
        [PLAN_WEIGHTS] = "weights",         [PLAN_GRADIENTS] = "gradients",
        [PLAN_MASTERS] = "masters",         [PLAN_MOMENTS] = "moments",
        [PLAN_ACTIVATIONS] = "activations", [PLAN_WORKING] = "working",
        [PLAN_LOGITS] = "logits",           [PLAN_MESSAGES] = "messages",
        [PLAN_WORKSPACE] = "workspace",     [PLAN_SNAPSHOTS] = "snapshots",
        [PLAN_FRAGMENTATION] = "fragmentation",
        [PLAN_CONTEXT] = "context"};
    return (unsigned)item < PLAN_ITEMS ? names[item] : "unknown";
}

struct plan_memory_cache *plan_memory_cache_open(struct err *err) {
    struct plan_memory_cache *cache = plan_memory_own_open();
    if (!cache) (void)err_set(err, ERR_MEMORY, "no memory for the memory plan");
    return cache;
}

void plan_memory_cache_close(struct plan_memory_cache *cache) {
    if (cache) plan_memory_own_close(cache);
}

static int open_pipeline(const struct job *job, struct pipeline *pipeline, struct err *err) {
    struct pipeline_shape shape = job_pipeline_shape(job, job->micro_batches);
    return job->schedule == PIPELINE_FILE
               ? pipeline_open_csv(pipeline, job->schedule_csv, "schedule", &shape, err)
               : pipeline_open(pipeline, &shape, err);
}

// Allowances over the live tensors: what the stack's allocator loses, what the driver takes.
// Programs without one buffer for gradients make and free them (and copies of weights) like
// activations.
static void add_up(const struct job *job, struct plan_memory *m) {
    const struct stack *stack = job->stack;
    double moving = 0;
    m->allocated = 0;
    for (int i = 0; i < PLAN_FRAGMENTATION; i++) {
        m->allocated += m->bytes[i];
        bool goes = (i >= PLAN_ACTIVATIONS && i != PLAN_SNAPSHOTS) ||
                    (stack->both_gradients && (i == PLAN_WEIGHTS || i == PLAN_GRADIENTS));
        if (goes) moving += m->bytes[i];
    }
    m->bytes[PLAN_FRAGMENTATION] += stack->allocator_share.value * moving;
    m->bytes[PLAN_CONTEXT] = job->cluster.accelerator.cpu ? 0 : stack->context_bytes.value;
    m->total = m->allocated + m->bytes[PLAN_FRAGMENTATION] + m->bytes[PLAN_CONTEXT];
}

int plan_memory_with(const struct job *job, const struct pipeline *pipeline,
                     struct plan_memory_cache *cache, struct plan_memory *ranks, struct err *err) {
    struct pipeline opened;
    int count = job->layout.mesh.size[MESH_PP];
    if (!pipeline && open_pipeline(job, &opened, err) != 0) return -1;
    const struct pipeline *lists = pipeline ? pipeline : &opened;
    for (int i = 0; i < count; i++)
        ranks[i] =
            (struct plan_memory){.pipeline_rank = i, .in_flight = pipeline_in_flight(lists, i)};
    int result = job->stack->own ? plan_memory_own(job, lists, cache, ranks, err)
                                 : plan_memory_stack(job, lists, ranks, err);
    for (int i = 0; result == 0 && i < count; i++) add_up(job, &ranks[i]);
    if (!pipeline) pipeline_close(&opened);
    return result;
}

int plan_memory(const struct job *job, struct plan_memory *ranks, struct err *err) {
    return plan_memory_with(job, NULL, NULL, ranks, err);
}

int plan_memory_fullest(const struct plan_memory *ranks, int count) {
    int most = 0;
    for (int i = 1; i < count; i++)
        if (ranks[i].total > ranks[most].total) most = i;
    return most;
}
