// A published row as a job. See validate.h.
#include "plan/validate_parts.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CHOICES = 1 << 24 }; // of making a list of zb-2p

bool published_begins(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

int published_noted(const struct published *row, const char *key) {
    const char *at = strstr(row->notes, key);
    long value = at ? strtol(at + strlen(key), NULL, 10) : 0;
    return value > 0 && value < 1 << 20 ? (int)value : 0;
}

static int one(int given) {
    return given > 0 ? given : 1;
}

// ---- the mesh

static int take_mesh(const struct published *row, const struct publisher *publisher,
                     struct job *job, struct err *err) {
    struct mesh *mesh = &job->layout.mesh;
    int tp = one(row->tp), pp = one(row->pp), cp = one(row->cp);
    if (row->gpus < 1) return err_set(err, ERR_DATA, "the number of GPUs is not given");
    int left = row->gpus;
    bool divides = left % tp == 0 && (left /= tp) % pp == 0 && (left /= pp) % cp == 0;
    if (!divides)
        return err_set(err, ERR_DATA, "tp %d x pp %d x cp %d does not divide %d GPUs", tp, pp, cp,
                       row->gpus);
    mesh->size[MESH_TP] = tp, mesh->size[MESH_PP] = pp, mesh->size[MESH_CP] = cp;
    mesh->size[MESH_DP] = left / cp;
    int data = mesh->size[MESH_DP] * cp;
    // Experts may also lie on the ranks of a tensor group; here each group of ep is one of data
    // ranks, so the largest that there is room for stands in.
    mesh->ep = job->model.experts ? one(row->ep) : 1;
    if (mesh->ep > data) mesh->ep = data;
    while (mesh->ep > 1 && (data % mesh->ep != 0 || job->model.experts % mesh->ep != 0)) mesh->ep--;
    int zero = row->zero >= 0 ? row->zero : publisher->zero;
    job->layout.zero = data > 1 ? zero : 0;
    if (job->layout.zero > 3)
        return err_set(err, ERR_DATA, "zero stage %d is none of 0 to 3", zero);
    int shard = published_noted(row, "FSDP group ");
    if (!shard) shard = published_noted(row, "sharding group ");
    mesh->shard = shard && shard < data && data % shard == 0 ? shard : data;
    if (job->layout.zero == 0) mesh->shard = data;
    bool cut =
        row->sequence_parallel >= 0 ? row->sequence_parallel == 1 : job->stack->sequence_parallel;
    job->layout.sequence_parallel = tp > 1 && cut;
    return 0;
}

// ---- the batch

static int64_t default_rows(const struct published *row, const struct job *job) {
    int64_t replica = row->sequences > 0 ? row->sequences / job->layout.mesh.size[MESH_DP] : 0;
    // torchtitan cuts what a replica holds into as many pieces as there are stages
    if (published_begins(row->source, "torchtitan") && replica > 0)
        return replica > one(row->pp) ? replica / one(row->pp) : 1;
    if (published_begins(row->source, "flashattention"))
        return 16384 / job->context ? 16384 / job->context : 1;
    return one(row->pp) == 1 && replica > 0 && replica <= 16 ? replica : 1;
}

static int take_batch(const struct published *row, struct job *job, struct err *err) {
    static const char *const noted[] = {
        "mbc (micro-batch count)=", "#microbatch=", "GradAccum=", "GradAcc=", "GA="};
    int dp = job->layout.mesh.size[MESH_DP], times = 0;
    for (size_t i = 0; i < sizeof noted / sizeof noted[0] && !times; i++)
        times = published_noted(row, noted[i]);
    int64_t rows = row->rows > 0 ? row->rows : default_rows(row, job);
    int64_t replica = row->sequences > 0 ? row->sequences / dp : rows * one(times);
    if (row->sequences <= 0 && !times && job->layout.mesh.size[MESH_PP] > 1)
        return err_set(err, ERR_DATA, "the batch of a step is not given");
    if (replica < 1)
        return err_set(err, ERR_DATA,
                       "a batch of %lld sequences is less than one for each of %d "
                       "replicas",
                       (long long)row->sequences, dp);
    if (rows > replica) rows = replica;
    int64_t count = (replica + rows - 1) / rows;
    if (rows > 1 << 20 || count > 1 << 16)
        return err_set(err, ERR_DATA, "%lld micro-batches of %lld sequences", (long long)count,
                       (long long)rows);
    job->rows = (int)rows;
    job->micro_batches = (int)count;
    return 0;
}

// ---- the pipeline

// Megatron-LM examples/sc21/run_table_1.sh prints the layers of a virtual stage, which the paper's
// table leaves out: 5 of 15 (pp 4), 5 of 10 (pp 8), 3 of 6 (pp 16), 1 of 3 (pp 35), else all.
static int sc21_chunks(int pp) {
    return pp == 4 || pp == 35 ? 3 : pp == 8 || pp == 16 ? 2 : 1;
}

static int chunks_of(const struct published *row, const struct publisher *publisher, int pp,
                     int layers) {
    if (row->vpp > 0) return row->vpp;
    // NVIDIA's recipe of this model (dgxc-benchmarking nemotron/README.md): VP 12, which the table
    // of 25.04 leaves out
    if (strcasestr(row->model, "nemotron") && strstr(row->model, "340") && layers == 12 * pp)
        return 12;
    if (published_begins(row->source, "megatron2021")) return sc21_chunks(pp);
    if (published_begins(row->source, "megascale"))
        return layers == 105 ? 3 : 6; // arXiv 2402.15627
    if (publisher->whole_vpp) return (layers + 2) / pp > 0 ? (layers + 2) / pp : 1;
    if (strcmp(row->schedule, "interleaved") != 0) return 1;
    int each = layers / pp; // one or two layers in a chunk
    return each % 2 == 0 ? (each / 2 ? each / 2 : 1) : each;
}

static int take_schedule(const struct published *row, const struct publisher *publisher,
                         struct job *job, struct err *err) {
    const char *name = row->schedule;
    int pp = job->layout.mesh.size[MESH_PP];
    job->layout.chunks = 1;
    job->schedule = PIPELINE_1F1B;
    if (pp == 1) return 0;
    if (strcmp(name, "gpipe") == 0 || strcmp(name, "afab") == 0)
        job->schedule = PIPELINE_GPIPE;
    else if (strcmp(name, "zb-h1") == 0 || strcmp(name, "zb-1p") == 0)
        job->schedule = PIPELINE_ZB_H1;
    else if (strcmp(name, "zb-v") == 0 || strcmp(name, "dualpipe") == 0 ||
             strcmp(name, "DualPipe") == 0)
        job->schedule = PIPELINE_ZB_V;
    else if (strcmp(name, "zb-2p") == 0 || strcmp(name, "zb-h2") == 0)
        job->schedule = PIPELINE_FILE;
    else if (!*name || strcmp(name, "interleaved") == 0 || strcmp(name, "none") == 0 ||
             strcmp(name, "1f1b") == 0) {
        job->layout.chunks = chunks_of(row, publisher, pp, job->model.layers);
        if (job->layout.chunks > 1) job->schedule = PIPELINE_INTERLEAVED;
    } else
        return err_set(err, ERR_DATA, "schedule \"%s\" is none that the planner has", name);
    if (job->schedule == PIPELINE_ZB_V) {
        job->layout.chunks = 2;
        job->layout.placement = PLACE_V;
    }
    if (job->layout.chunks > LAYOUT_MAX_CHUNKS || layout_stages(&job->layout) > LAYOUT_MAX_STAGES)
        return err_set(err, ERR_DATA, "pp %d x %d chunks are more stages than the planner has", pp,
                       job->layout.chunks);
    return 0;
}

// nanotron gives a stage blocks until their cost reaches its share of the whole, the block that
// reaches it included (models/base.py): 4 heads head_dim hidden + 3 ffn hidden of a layer, vocab
// hidden of the head.
static void split_by_cost(struct layout *layout, const struct model_config *c) {
    double layer = 4.0 * c->heads * c->head_dim * c->hidden + 3.0 * c->ffn * c->hidden;
    double whole = layer * c->layers + (double)c->vocab * c->hidden;
    int stages = layout_stages(layout), stage = 0;
    layout->layer_first[0] = 0;
    for (int i = 1; i <= c->layers; i++)
        if (layer * i >= whole * (stage + 1) / stages) layout->layer_first[++stage] = i;
    while (stage < stages) layout->layer_first[++stage] = c->layers;
}

// DeepSpeed without partition_method: "78/12=6.5 - so the last stage has 1 block, while the rest
// have 7" (BigScience's chronicle).
static void split_ceiling(struct layout *layout, int layers) {
    int stages = layout_stages(layout), each = (layers + stages - 1) / stages;
    for (int stage = 0; stage <= stages; stage++)
        layout->layer_first[stage] = stage * each < layers ? stage * each : layers;
}

// Stages of equal weight, of which the first and the last hold something else worth so many layers.
static void split_ends(struct layout *layout, int layers, int first, int last) {
    int stages = layout_stages(layout), each = (layers + first + last) / stages;
    for (int stage = 1; stage < stages; stage++) layout->layer_first[stage] = each * stage - first;
    layout->layer_first[0] = 0;
    layout->layer_first[stages] = layers;
}

// Layers that do not divide evenly: embedding and head weigh one each, as the recipes do that state
// it (zero-bubble, BLOOM, Llama 3, Megatron-Core's account_for_... options). With two layers less
// than stages, embedding and head have a stage of their own.
static int take_layers(const struct published *row, struct job *job, struct err *err) {
    struct layout *layout = &job->layout;
    int stages = layout_stages(layout), layers = job->model.layers;
    // Megatron-Bridge's layouts ("Et|(tt|)*30mL") place the module that foretells a second token
    // beside the loss, where both weigh a layer. Where DeepSeek's own DualPipe has it is not
    // published.
    if (published_begins(row->source, "megatron_bridge") &&
        published_begins(row->model, "DeepSeekV3")) {
        job->predictions = 1;
        if (stages > 1 && (layers + 3) % stages == 0) return split_ends(layout, layers, 1, 2), 0;
    }
    if (published_begins(row->source, "nanotron")) return split_by_cost(layout, &job->model), 0;
    if (published_begins(row->source, "bigscience") && (layers + 2) % stages != 0)
        return split_ceiling(layout, layers), 0;
    if (layers >= stages)
        return layout_split_layers(layout, &job->model, NULL, 0, layers % stages != 0, err);
    if (layers + 2 != stages)
        return err_set(err, ERR_DATA, "%d layers do not fill %d stages", layers, stages);
    split_ends(layout, layers, 1, 1);
    return 0;
}

// ---- precision and recipe

static int take_precision(const struct published *row, struct job *job, struct err *err) {
    static const struct {
        const char *name;
        enum hardware_precision precision;
    } names[] = {{"", HARDWARE_BF16},      {"bf16", HARDWARE_BF16}, {"fp16", HARDWARE_BF16},
                 {"fp32", HARDWARE_FP32},  {"fp8", HARDWARE_FP8},   {"mxfp8", HARDWARE_FP8},
                 {"float8", HARDWARE_FP8}, {"nvfp4", HARDWARE_FP4}, {"fp4", HARDWARE_FP4}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(row->precision, names[i].name) == 0) {
            job->precision = names[i].precision;
            if (job->cluster.accelerator.dense[job->precision].value > 0) return 0;
            return err_set(err, ERR_DATA, "no rate of the %s in %s is known",
                           job->cluster.accelerator.name, row->precision);
        }
    return err_set(err, ERR_DATA, "precision \"%s\" is none that the planner has", row->precision);
}

static int try_memory(struct job *job, bool *fits, struct err *err) {
    struct plan_memory ranks[LAYOUT_MAX_STAGES];
    if (plan_memory(job, ranks, err) != 0) return -1;
    *fits = true;
    for (int r = 0; r < job->layout.mesh.size[MESH_PP]; r++)
        if (ranks[r].total > job->cluster.accelerator.memory_bytes.value) *fits = false;
    return 0;
}

// Where a recipe is not printed, the lightest that fits.
static int fit_recompute(struct job *job, struct err *err) {
    static const enum engine_recompute modes[] = {RECOMPUTE_NONE, RECOMPUTE_SELECTIVE,
                                                  RECOMPUTE_SELECTIVE_MLP, RECOMPUTE_FULL};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        bool fits;
        job->recompute = modes[i];
        if (try_memory(job, &fits, err) != 0) return -1;
        if (fits) return 0;
    }
    job->recompute = RECOMPUTE_NONE; // it ran, so its recipe is lighter than this program's
    return 0;
}

static int take_recompute(const struct published *row, const struct publisher *publisher,
                          struct job *job, struct err *err) {
    const char *mode = *row->recompute        ? row->recompute
                       : publisher->recompute ? publisher->recompute
                                              : "none";
    if (strcmp(mode, "fit") == 0) return fit_recompute(job, err);
    if (strcmp(mode, "none") == 0)
        job->recompute = RECOMPUTE_NONE;
    else if (strcmp(mode, "selective_mlp") == 0)
        job->recompute = RECOMPUTE_SELECTIVE_MLP;
    else if (published_begins(mode, "selective"))
        job->recompute = RECOMPUTE_SELECTIVE;
    else if (published_begins(mode, "full"))
        job->recompute = RECOMPUTE_FULL;
    else
        return err_set(err, ERR_DATA, "recompute \"%s\" is none that the planner has", mode);
    return 0;
}

static void take_types(const struct published *row, struct job *job) {
    job->accumulate_type = job->stack->gradient;
    job->reduce_type = job->stack->reduce;
    job->gather_type = DTYPE_BF16;
    if (strstr(row->notes, "PURE")) // llm-foundry: gradients kept and reduced in BF16
        job->accumulate_type = job->reduce_type = DTYPE_BF16;
    // Megatron-DeepSpeed's BF16 optimizer adds gradients up in FP32, its FP16 one does not
    if (published_begins(row->source, "bigscience") && strcmp(row->precision, "bf16") == 0)
        job->accumulate_type = DTYPE_F32;
    job->dropout = job->stack->dropout ? 0.1 : 0;
    // NVIDIA's later tables force the balance of experts and say so; SimuMax measures balanced
    // ones. A router at the beginning of training gives its busiest rank some 15 % more (assumed).
    bool forced = strstr(row->notes, "force-balanced") || published_begins(row->source, "simumax");
    job->imbalance = job->model.experts && !forced ? 1.15 : 1;
}

static int take_list(struct job *job, struct err *err) {
    int pp = job->layout.mesh.size[MESH_PP];
    if (job->schedule != PIPELINE_FILE) return 0;
    if ((double)pp * pp * job->micro_batches > MOST_CHOICES)
        return err_set(err, ERR_DATA, "zb-2p of %d ranks and %d micro-batches is too long a list",
                       pp, job->micro_batches);
    job->schedule_csv = validate_zb_2p(pp, job->micro_batches);
    return job->schedule_csv ? 0 : err_set(err, ERR_MEMORY, "no memory for a schedule");
}

static int make(const struct published *row, struct validate_tools *tools, struct job *job,
                struct err *err) {
    const struct publisher *publisher = publisher_of(row);
    if (published_model(row, publisher, &job->model, err) != 0) return -1;
    job->context = job->model.context;
    job->stack = published_stack(row, publisher, tools, err);
    if (!job->stack) return -1;
    if (published_cluster(row, publisher, tools, &job->cluster, err) != 0) return -1;
    if (take_mesh(row, publisher, job, err) != 0 || take_batch(row, job, err) != 0 ||
        take_schedule(row, publisher, job, err) != 0 || take_layers(row, job, err) != 0 ||
        take_precision(row, job, err) != 0 || take_list(job, err) != 0)
        return -1;
    take_types(row, job);
    return take_recompute(row, publisher, job, err);
}

int published_job(const struct published *row, struct validate_tools *tools, struct job *out,
                  struct err *err) {
    struct job job;
    job_defaults(&job);
    if (make(row, tools, &job, err) != 0) {
        free((char *)job.schedule_csv);
        return -1;
    }
    *out = job;
    return 0;
}
