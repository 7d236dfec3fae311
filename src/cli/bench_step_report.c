// See bench_step.h.
#include "base/text.h"
#include "cli/bench_step.h"
#include <jansson.h>
#include <stdio.h>

// Below, the program itself and its libraries weigh too much for the ratio to say something.
static const uint64_t LEAST_PLANNED_BYTES = 256000000;

double bench_memory_ratio(const struct bench_rank *rank) {
    return ((double)rank->peak_pss - (double)rank->base_pss) / (double)rank->planned;
}

// The messages of a stream and kind, mean over the ranks. False: there were none.
static bool messages_of(const struct bench_step *b, int stream, int kind,
                        struct comm_counts *mean) {
    *mean = (struct comm_counts){0};
    for (int r = 0; r < b->ranks; r++) {
        const struct comm_counts *c = &b->rank[r].messages[stream][kind];
        mean->operations += c->operations;
        mean->bytes += c->bytes;
        mean->queued_seconds += c->queued_seconds / b->ranks;
        mean->in_flight_seconds += c->in_flight_seconds / b->ranks;
        mean->exposed_seconds += c->exposed_seconds / b->ranks;
    }
    bool any = mean->operations > 0;
    mean->operations /= (uint64_t)b->ranks;
    mean->bytes /= (uint64_t)b->ranks;
    return any;
}

static const char *stream_name(const struct bench_step *b, int stream) {
    struct comm_counts unused;
    return engine_stream_counts(b->engine, stream, COMM_BARRIER, &unused);
}

static int streams(const struct bench_step *b) {
    int count = engine_stream_count(b->engine);
    return count < BENCH_STREAMS ? count : BENCH_STREAMS;
}

static double share(const struct comm_counts *c) {
    return c->in_flight_seconds > 0 ? c->exposed_seconds / c->in_flight_seconds : 0;
}

// ---- JSON ---------------------------------------------------------------------------------------

struct real {
    const char *name;
    double value;
};
struct integer {
    const char *name;
    uint64_t value;
};

static void put_reals(json_t *to, const struct real *reals, size_t count) {
    for (size_t i = 0; i < count; i++)
        json_object_set_new(to, reals[i].name, json_real(reals[i].value));
}

static void put_integers(json_t *to, const struct integer *integers, size_t count) {
    for (size_t i = 0; i < count; i++)
        json_object_set_new(to, integers[i].name, json_integer((json_int_t)integers[i].value));
}

static json_t *messages_json(const struct bench_step *b) {
    json_t *list = json_array();
    for (int s = 0; s < streams(b); s++)
        for (int k = 0; k < COMM_KIND_COUNT; k++) {
            struct comm_counts c;
            if (!messages_of(b, s, k, &c)) continue;
            json_t *one = json_object();
            json_object_set_new(one, "stream", json_string(stream_name(b, s)));
            json_object_set_new(one, "kind", json_string(comm_kind_name((enum comm_kind)k)));
            const struct integer integers[] = {{"operations", c.operations}, {"bytes", c.bytes}};
            const struct real reals[] = {{"queued_seconds", c.queued_seconds},
                                         {"in_flight_seconds", c.in_flight_seconds},
                                         {"exposed_seconds", c.exposed_seconds},
                                         {"exposed_over_in_flight", share(&c)}};
            put_integers(one, integers, 2);
            put_reals(one, reals, 4);
            json_array_append_new(list, one);
        }
    return list;
}

static json_t *ranks_json(const struct bench_step *b) {
    json_t *list = json_array();
    for (int r = 0; r < b->ranks; r++) {
        const struct bench_rank *k = &b->rank[r];
        json_t *one = json_object();
        const struct integer integers[] = {{"planned_bytes", k->planned},
                                           {"allocated_bytes", k->allocated},
                                           {"base_pss_bytes", k->base_pss},
                                           {"peak_resident_bytes", k->peak_pss}};
        put_integers(one, integers, 4);
        if (k->planned >= LEAST_PLANNED_BYTES)
            json_object_set_new(one, "resident_over_planned", json_real(bench_memory_ratio(k)));
        json_object_set_new(one, "step_seconds", json_real(k->step_seconds));
        json_object_set_new(one, "comm_wait_seconds", json_real(k->seconds[RECORD_COMM_WAIT]));
        json_array_append_new(list, one);
    }
    return list;
}

int bench_step_json(const struct bench_step *b) {
    json_t *phases = json_object(), *memory = json_object(), *root = json_object();
    const struct bench_rank *first = &b->rank[0];
    for (int k = 0; k < RECORD_KIND_COUNT; k++)
        if (first->seconds[k] > 0)
            json_object_set_new(phases, record_kind_name(k), json_real(first->seconds[k]));
    for (int k = 0; k < BUFFER_KIND_COUNT; k++)
        json_object_set_new(memory, buffer_kind_name(k),
                            json_integer((json_int_t)first->planned_by_kind[k]));
    const struct real reals[] = {{"step_seconds", b->step_seconds},
                                 {"tokens_per_second", b->mfu.tokens_per_second},
                                 {"model_flops_full", b->mfu.flops_full},
                                 {"model_flops_causal", b->mfu.flops_causal},
                                 {"gemm_rate_before", b->rate_before},
                                 {"gemm_rate_after", b->rate_after},
                                 {"mfu", b->mfu.full},
                                 {"mfu_causal", b->mfu.causal},
                                 {"hfu", b->mfu.hfu},
                                 {"recomputed_flops_per_token", b->recompute_flops},
                                 {"resident_over_planned", bench_memory_ratio(first)},
                                 {"loss", b->last.loss}};
    const struct integer integers[] = {{"tokens_per_step", (uint64_t)b->last.processed},
                                       {"steps", (uint64_t)b->steps},
                                       {"micro_batch", (uint64_t)b->config->micro_batch},
                                       {"ranks", (uint64_t)b->ranks},
                                       {"threads", (uint64_t)b->device->threads},
                                       {"planned_bytes", first->planned},
                                       {"allocated_bytes", first->allocated},
                                       {"base_pss_bytes", first->base_pss},
                                       {"peak_resident_bytes", first->peak_pss}};
    put_reals(root, reals, sizeof reals / sizeof reals[0]);
    put_integers(root, integers, sizeof integers / sizeof integers[0]);
    json_object_set_new(root, "device", json_string(b->device->name));
    json_object_set_new(root, "recompute_adds",
                        json_string(engine_recompute_text(b->config->recompute)));
    json_object_set_new(root, "seconds", phases);
    json_object_set_new(root, "planned_by_kind", memory);
    if (b->ranks > 1) {
        json_object_set_new(root, "rank", ranks_json(b));
        json_object_set_new(root, "messages", messages_json(b));
    }
    int status = json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    printf("\n");
    json_decref(root);
    return status;
}

// ---- text ---------------------------------------------------------------------------------------

static void print_ranks(const struct bench_step *b) {
    const struct mesh *m = b->mesh;
    printf(
        "ranks                  %d as pp %d x dp %d x cp %d x tp %d, ZeRO-%d, %d thread%s each\n",
        b->ranks, m->size[MESH_PP], m->size[MESH_DP], m->size[MESH_CP], m->size[MESH_TP],
        b->config->zero, b->device->threads, b->device->threads == 1 ? "" : "s");
    for (int r = 0; r < b->ranks; r++) {
        char planned[32], allocated[32], peak[32];
        const struct bench_rank *k = &b->rank[r];
        printf("  rank %-15d planned %s, allocated %s, peak resident %s", r,
               text_bytes(k->planned, planned), text_bytes(k->allocated, allocated),
               text_bytes(k->peak_pss, peak));
        if (k->planned >= LEAST_PLANNED_BYTES)
            printf("; resident over planned %.3f", bench_memory_ratio(k));
        printf("\n");
    }
    printf("messages of a step     %-14s %10s %10s %10s %10s %10s\n", "", "operations", "sent",
           "in flight", "exposed", "share");
    for (int s = 0; s < streams(b); s++)
        for (int k = 0; k < COMM_KIND_COUNT; k++) {
            struct comm_counts c;
            char sent[32];
            if (!messages_of(b, s, k, &c)) continue;
            printf("  %-20s %-14s %10llu %10s %8.3f s %8.3f s %10.3f\n", stream_name(b, s),
                   comm_kind_name((enum comm_kind)k), (unsigned long long)c.operations,
                   text_bytes(c.bytes, sent), c.in_flight_seconds, c.exposed_seconds, share(&c));
        }
}

void bench_step_text(const struct bench_step *b) {
    const struct bench_rank *first = &b->rank[0];
    char planned[32], allocated[32], peak[32];
    printf("device                 %s\n", b->device->name);
    printf("step time              %.3f s, median of %d, %lld tokens in micro-batches of %d x %d\n",
           b->step_seconds, b->steps, (long long)b->last.processed, b->config->micro_batch,
           b->config->context);
    printf("tokens/s               %.0f\n", b->mfu.tokens_per_second);
    printf("model FLOP/s           %.1f G full attention, %.1f G causal\n", b->mfu.flops_full / 1e9,
           b->mfu.flops_causal / 1e9);
    if (b->rate_after > 0) {
        printf("best GEMM rate         %.1f G before, %.1f G after%s\n", b->rate_before / 1e9,
               b->rate_after / 1e9, b->ranks > 1 ? ", of all ranks" : "");
        printf("MFU                    %.3f full attention, %.3f causal; HFU %.3f\n", b->mfu.full,
               b->mfu.causal, b->mfu.hfu);
    }
    printf("recomputation adds     %s; %.1f MFLOP of products per token\n",
           engine_recompute_text(b->config->recompute), b->recompute_flops / 1e6);
    if (b->ranks > 1) {
        print_ranks(b);
    } else {
        printf("planned bytes          %s, allocated %s\n", text_bytes(first->planned, planned),
               text_bytes(first->allocated, allocated));
        printf("peak resident          %s; resident over planned %.3f\n",
               text_bytes(first->peak_pss, peak), bench_memory_ratio(first));
    }
    for (int k = 0; k < BUFFER_KIND_COUNT; k++) {
        uint64_t bytes = first->planned_by_kind[k];
        if (bytes) printf("  %-20s %s\n", buffer_kind_name(k), text_bytes(bytes, planned));
    }
    printf("seconds of a step%s\n", b->ranks > 1 ? " on rank 0" : "");
    for (int k = 0; k < RECORD_KIND_COUNT; k++)
        if (first->seconds[k] > 0) printf("  %-20s %.3f\n", record_kind_name(k), first->seconds[k]);
}
