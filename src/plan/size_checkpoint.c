// Checkpoints, their bandwidth and where they are kept. See size.h.
#include "plan/size.h"
#include <math.h>

// BF16 weight, FP32 master, two FP32 moments.
enum { WEIGHT_BYTES = 2, MASTER_BYTES = 4, MOMENT_BYTES = 8 };

double size_checkpoint_bytes(double params, bool weights) {
    return params * (MASTER_BYTES + MOMENT_BYTES + (weights ? WEIGHT_BYTES : 0));
}

// Bytes/s at which all nodes together write to a tier.
static double write_rate(const struct cluster *cluster, enum storage_kind kind) {
    const struct storage *s = &cluster->storage[kind];
    if (!s->given) return 0;
    return s->write.value * (kind == STORAGE_NODE ? cluster->nodes : 1);
}

static double read_rate(const struct cluster *cluster, enum storage_kind kind) {
    const struct storage *s = &cluster->storage[kind];
    if (!s->given) return 0;
    return s->read.value * (kind == STORAGE_NODE ? cluster->nodes : 1);
}

static void put_tiers(const struct cluster *cluster, double bytes, struct size_sheet *out) {
    static const char *const written[STORAGE_KINDS] = {[STORAGE_NODE] = "written_to_nodes",
                                                       [STORAGE_PARALLEL] = "written_to_parallel",
                                                       [STORAGE_OBJECT] = "written_to_object"};
    static const char *const loaded[STORAGE_KINDS] = {[STORAGE_NODE] = "read_from_nodes",
                                                      [STORAGE_PARALLEL] = "read_from_parallel",
                                                      [STORAGE_OBJECT] = "read_from_object"};
    for (int k = 0; k < STORAGE_KINDS; k++) {
        double write = write_rate(cluster, (enum storage_kind)k);
        double read = read_rate(cluster, (enum storage_kind)k);
        if (write > 0) size_put(out, "checkpoint", written[k], bytes / write, "s");
        if (read > 0) size_put(out, "checkpoint", loaded[k], bytes / read, "s");
    }
}

void size_checkpoint_times(double params, const struct cluster *cluster, double host_bandwidth,
                           double *blocking, double *persist) {
    double bytes = size_checkpoint_bytes(params, true);
    *blocking = bytes / cluster->nodes / cluster->per_node / host_bandwidth;
    *persist = 0;
    for (int k = 0; k < STORAGE_KINDS && *persist <= 0; k++) {
        int kind = (int[]){STORAGE_PARALLEL, STORAGE_NODE, STORAGE_OBJECT}[k];
        double rate = write_rate(cluster, (enum storage_kind)kind);
        if (rate > 0) *persist = bytes / rate;
    }
}

int size_checkpoint(const struct size_checkpoint *in, struct size_sheet *out, struct err *err) {
    if (size_check("parameters", in->params, 1, 1e15, err) != 0 ||
        size_check("seconds", in->seconds, 1e-3, 1e7, err) != 0 ||
        size_check("host bandwidth", in->host_bandwidth, 1e3, 1e15, err) != 0)
        return -1;
    double bytes = size_checkpoint_bytes(in->params, true);
    size_put(out, "checkpoint", "parameters", in->params, "");
    struct size_line *line = size_put(out, "checkpoint", "bytes_per_parameter", 14, "B");
    size_note(line, NAN, "BF16 weights 2, FP32 masters 4, moments 8");
    line = size_put(out, "checkpoint", "bytes", bytes, "B");
    // the one figure that textbooks give is of a 70B model
    if (fabs(in->params / 70e9 - 1) < 0.02)
        size_note(line, 500e9, "that would be 7 bytes a parameter");
    line = size_put(out, "checkpoint", "without_bf16_weights",
                    size_checkpoint_bytes(in->params, false), "B");
    size_note(line, NAN, "they are the masters, rounded");
    size_put(out, "checkpoint", "burst_bandwidth", bytes / in->seconds, "B/s");
    size_note(&out->lines[out->count - 1], NAN, "to be written in %.4g s", in->seconds);
    if (!in->cluster) return 0;
    double accelerators = (double)in->cluster->nodes * in->cluster->per_node;
    double blocking, persist;
    size_checkpoint_times(in->params, in->cluster, in->host_bandwidth, &blocking, &persist);
    size_put(out, "checkpoint", "burst_of_a_node", bytes / in->seconds / in->cluster->nodes, "B/s");
    size_put(out, "checkpoint", "snapshot_of_an_accelerator", bytes / accelerators, "B");
    line = size_put(out, "checkpoint", "blocking_seconds", blocking, "s");
    size_note(line, NAN, "to host memory at %.3g GB/s for each accelerator",
              in->host_bandwidth / 1e9);
    put_tiers(in->cluster, bytes, out);
    line = size_put(out, "checkpoint", "persist_seconds", persist, "s");
    size_note(line, NAN, "weft simulate run --blocking %.2f --persist %.1f", blocking, persist);
    return 0;
}

static int check_storage(const struct size_storage *in, struct err *err) {
    if (size_check("parameters", in->params, 1, 1e15, err) != 0 ||
        size_check("run seconds", in->run_seconds, 1, 1e10, err) != 0 ||
        size_check("interval", in->interval_seconds, 1e-3, 1e10, err) != 0 ||
        size_check("keep", in->keep, 1, 1e6, err) != 0 ||
        size_check("archive every", in->archive_every, 1, 1e9, err) != 0 ||
        size_check("dataset tokens", in->dataset_tokens, 0, 1e18, err) != 0 ||
        size_check("vocab", (double)in->vocab, 2, 1e9, err) != 0)
        return -1;
    return 0;
}

// A tier's bytes with its capacity and price, as far as they are known.
static void put_tier(const struct size_storage *in, enum storage_kind kind, const char *section,
                     double bytes, double parts, const char *note, struct size_sheet *out) {
    const struct storage *s = in->cluster ? &in->cluster->storage[kind] : NULL;
    struct size_line *line = size_put(out, section, "needed", bytes, "B");
    size_note(line, NAN, "%s", note);
    if (!s || !s->given) return;
    double capacity = s->capacity_bytes.value * parts;
    if (capacity > 0) {
        line = size_put(out, section, "share_of_capacity", bytes / capacity, "share");
        if (bytes > capacity)
            size_note(line, NAN, "does not fit: keep fewer, or archive less often");
    }
    if (s->price_per_tb_month.value > 0)
        size_put(out, section, "price_a_month", bytes / 1e12 * s->price_per_tb_month.value, "$");
}

int size_storage(const struct size_storage *in, struct size_sheet *out, struct err *err) {
    if (check_storage(in, err) != 0) return -1;
    double bytes = size_checkpoint_bytes(in->params, true);
    double saves = floor(in->run_seconds / in->interval_seconds);
    double archived = floor(saves / in->archive_every) + 1; // and the final one
    double data = in->dataset_tokens * size_token_bytes(in->vocab);
    double nodes = in->cluster ? in->cluster->nodes : 1;
    size_put(out, "checkpoints", "bytes_of_one", bytes, "B");
    size_put(out, "checkpoints", "saves", saves, "");
    size_put(out, "checkpoints", "written_in_all", saves * bytes, "B");
    size_put(out, "checkpoints", "write_bandwidth_on_average", bytes / in->interval_seconds, "B/s");
    if (data > 0) size_put(out, "data", "token_shards", data, "B");
    // memory tier: own state and a buddy's, two generations each
    size_put(out, "host memory of a node", "two_generations_own_and_buddy", 4 * bytes / nodes, "B");
    if (in->cluster && in->cluster->host_memory_bytes.value > 0) {
        struct size_line *line =
            size_put(out, "host memory of a node", "share_of_memory",
                     4 * bytes / nodes / in->cluster->host_memory_bytes.value, "share");
        if (line->value > 1) size_note(line, NAN, "does not fit: keep one generation, or no buddy");
    }
    put_tier(in, STORAGE_NODE, "node NVMe, all nodes", data + 2 * bytes, nodes,
             "each node its part of the shards, and of two checkpoints", out);
    put_tier(in, STORAGE_PARALLEL, "parallel file system", data + in->keep * bytes, 1,
             "the shards, and the newest checkpoints", out);
    size_put(out, "object store", "archived_checkpoints", archived, "");
    put_tier(in, STORAGE_OBJECT, "object store", data + archived * bytes, 1,
             "the shards, archived checkpoints and the last one", out);
    size_put(out, "object store", "weights_only_instead",
             data + archived * in->params * WEIGHT_BYTES, "B");
    return 0;
}
