// The keys of parallel runs: checks that need no world, the layout on a world, and what engine and
// communication get. See config.h.
#include "train/config_table.h"
#include <stdlib.h>
#include <string.h>

static int chunks_of(const struct train_config *c) {
    if (c->chunks > 0) return c->chunks;
    return c->pipeline == PIPELINE_INTERLEAVED || c->pipeline == PIPELINE_ZB_V ||
                   c->placement == PLACEMENT_V
               ? 2
               : 1;
}

static bool is_v(const struct train_config *c) {
    return c->placement == PLACEMENT_AUTO ? c->pipeline == PIPELINE_ZB_V
                                          : c->placement == PLACEMENT_V;
}

static int check_chunks(const struct train_config *c, struct err *err) {
    char place[1200], name[64];
    const char *kind =
        config_choice(&config_options[CONFIG_OPTION(pipeline)], (int)c->pipeline, name);
    const char *at = config_place(c, CONFIG_OPTION(chunks), place);
    int chunks = chunks_of(c);
    if (c->pipeline == PIPELINE_FILE) return 0;
    if (c->pipeline == PIPELINE_ZB_V && chunks != 2)
        return err_set(err, ERR_USAGE,
                       "%s: pipeline.chunks is %d, but zb-v has two stages on each rank; set it to "
                       "2 or leave it away",
                       at, chunks);
    if (c->pipeline == PIPELINE_INTERLEAVED && chunks < 2)
        return err_set(err, ERR_USAGE,
                       "%s: pipeline.chunks is %d, but interleaved needs 2 or more; with 1 stage "
                       "on each rank choose pipeline.schedule=1f1b",
                       at, chunks);
    if (c->pipeline != PIPELINE_ZB_V && c->pipeline != PIPELINE_INTERLEAVED && chunks != 1)
        return err_set(err, ERR_USAGE,
                       "%s: pipeline.chunks is %d, but %s has one stage on each rank; choose "
                       "interleaved or zb-v, or set it to 1",
                       at, chunks, kind);
    if (is_v(c) != (c->pipeline == PIPELINE_ZB_V))
        return err_set(
            err, ERR_USAGE,
            "%s: pipeline.placement is %s, but %s lays its stages out as a %s; leave the "
            "key away",
            config_place(c, CONFIG_OPTION(placement), place), is_v(c) ? "v" : "loop", kind,
            is_v(c) ? "loop" : "v");
    return 0;
}

static int check_file(const struct train_config *c, struct err *err) {
    char place[1200];
    if (c->pipeline == PIPELINE_FILE && !c->pipeline_file[0])
        return err_set(err, ERR_USAGE,
                       "%s: pipeline.schedule is file, but pipeline.file names none",
                       config_place(c, CONFIG_OPTION(pipeline), place));
    if (c->pipeline != PIPELINE_FILE && c->pipeline_file[0])
        return err_set(err, ERR_USAGE,
                       "%s: pipeline.file is given, but pipeline.schedule is not file",
                       config_place(c, CONFIG_OPTION(pipeline_file), place));
    if (c->pipeline == PIPELINE_FILE && c->batch_ramp[0])
        return err_set(err, ERR_USAGE,
                       "%s: train.batch_ramp changes the micro-batches of a step, but the list in "
                       "pipeline.file is for one number of them; choose another pipeline.schedule",
                       config_place(c, CONFIG_OPTION(batch_ramp), place));
    return 0;
}

static int check_recompute(const struct train_config *c, struct err *err) {
    char place[1200], kind[64], mode[64];
    if ((c->pipeline != PIPELINE_ZB_H1 && c->pipeline != PIPELINE_ZB_V) ||
        c->recompute == RECOMPUTE_NONE)
        return 0;
    config_choice(&config_options[CONFIG_OPTION(pipeline)], (int)c->pipeline, kind);
    config_choice(&config_options[CONFIG_OPTION(recompute)], (int)c->recompute, mode);
    return err_set(
        err, ERR_USAGE,
        "%s: train.recompute is %s, but the weight halves of backward in "
        "pipeline.schedule %s read what recomputation would overwrite; set it to none, or "
        "choose 1f1b or interleaved",
        config_place(c, CONFIG_OPTION(recompute), place), mode, kind);
}

// The sizes that need no world.
static int make_layout(const struct train_config *c, struct layout *layout, struct err *err) {
    char place[1200];
    *layout = (struct layout){
        .mesh = {.size = {c->pp, c->dp, c->cp, c->tp}, .ep = c->ep, .shard = c->shard},
        .chunks = chunks_of(c),
        .placement = is_v(c) ? PLACE_V : PLACE_LOOP,
        .sequence_parallel = c->tp > 1 && c->sequence_parallel != SWITCH_OFF,
        .zero = c->zero};
    if (mesh_parse_order(c->order, layout->mesh.order, err) != 0)
        return err_context(err, "%s: parallel.order", config_place(c, CONFIG_OPTION(order), place));
    int list[LAYOUT_MAX_STAGES + 1], count = 0;
    for (const char *at = c->pipeline_layers; *at && count <= LAYOUT_MAX_STAGES; at += *at == ',') {
        char *end;
        double layers = strtod(at, &end);
        if (layers != (int)layers)
            return err_set(err, ERR_USAGE, "%s: pipeline.layers: %g is not a number of layers",
                           config_place(c, CONFIG_OPTION(pipeline_layers), place), layers);
        list[count++] = (int)layers;
        at = end;
    }
    if (layout_split_layers(layout, &c->model, list, count, c->count_ends, err) != 0)
        return err_context(err, "%s",
                           count > 0 ? config_place(c, CONFIG_OPTION(pipeline_layers), place)
                                     : config_place(c, CONFIG_OPTION(pp), place));
    return 0;
}

int config_check_parallel(const struct train_config *c, struct err *err) {
    char place[1200];
    struct layout layout;
    if (check_chunks(c, err) != 0 || check_file(c, err) != 0 || check_recompute(c, err) != 0 ||
        make_layout(c, &layout, err) != 0)
        return -1;
    if (c->gather_precision == GATHER_FP32 && c->precision == PRECISION_BF16)
        return err_set(err, ERR_USAGE,
                       "%s: zero.gather_precision is fp32, but the weights are bf16 "
                       "(train.precision), and wider messages would carry nothing more",
                       config_place(c, CONFIG_OPTION(gather_precision), place));
    if (c->ep > 1 && c->model.experts == 0)
        return err_set(err, ERR_USAGE,
                       "%s: parallel.ep is %d, but the model has no experts to spread; use 1",
                       config_place(c, CONFIG_OPTION(ep), place), c->ep);
    return 0;
}

int config_layout(struct train_config *c, int ranks, struct layout *out, struct err *err) {
    struct layout layout;
    if (make_layout(c, &layout, err) != 0) return -1;
    if (mesh_complete(&layout.mesh, ranks, err) != 0)
        return c->path[0] ? err_context(err, "%s", c->path) : -1;
    int replicas = layout.mesh.size[MESH_DP];
    if (!config_is_set(c, CONFIG_OPTION(micro_batch)))
        c->micro_batch = config_usual_micro_batch(c, replicas);
    if (config_check_batches(c, replicas, err) != 0) return -1;
    struct model model = {.config = c->model};
    if (layout_check(&layout, &model, c->context, c->micro_batch,
                     c->batch / replicas / c->micro_batch, err) != 0)
        return c->path[0] ? err_context(err, "%s", c->path) : -1;
    c->replicas = replicas;
    *out = layout;
    return 0;
}

int config_micro_batches(const struct train_config *c) {
    return c->batch / c->replicas / c->micro_batch;
}

static enum dtype type_of(enum config_precision precision) {
    return precision == PRECISION_BF16 ? DTYPE_BF16 : DTYPE_F32;
}

void config_parallel(const struct train_config *c, struct engine_parallel *out) {
    *out = (struct engine_parallel){
        .schedule = c->pipeline,
        .bucket_bytes = c->bucket_bytes,
        .reduce_per_micro_batch = c->reduce == REDUCE_PER_MICRO_BATCH,
        .gather_type = c->gather_precision == GATHER_AUTO   ? type_of(c->precision)
                       : c->gather_precision == GATHER_BF16 ? DTYPE_BF16
                                                            : DTYPE_F32,
        .reduce_type = type_of(c->reduce_precision),
        .accumulate_type = type_of(c->accumulate_precision),
        .prefetch = c->prefetch,
        .gathers_in_flight = c->gathers_in_flight,
        .gather_keys = c->cp_kind == CP_GATHER,
        .per_document = c->cp_balance == CP_DOCUMENT,
    };
}

void config_comm(const struct train_config *c, struct comm_options *out) {
    *out = (struct comm_options){
        .watchdog_seconds = c->watchdog_seconds,
        .link_latency_seconds = c->link_latency_seconds,
        .link_bytes_per_second = c->link_bytes_per_second,
        .ranks_per_host = c->ranks_per_host,
        .check_order = c->check_order,
        .checksums = c->checksums,
    };
}
