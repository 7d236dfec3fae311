// The data path, and what packing brings. See size.h.
#include "model/flops.h"
#include "plan/size.h"
#include <math.h>

int size_token_bytes(int64_t vocab) {
    return vocab <= 65536 ? 2 : 4;
}

static int check_data(const struct size_data *in, struct err *err) {
    return size_check("tokens per second", in->tokens_per_second, 1e-3, 1e15, err) != 0 ||
                   size_check("vocab", (double)in->vocab, 2, 1e9, err) != 0 ||
                   size_check("shard tokens", in->shard_tokens, 1, 1e15, err) != 0 ||
                   size_check("workers", in->workers, 1, 1e8, err) != 0 ||
                   size_check("operations to open a shard", in->operations, 1, 1000, err) != 0 ||
                   size_check("metadata limit", in->metadata_limit, 0, 1e15, err) != 0 ||
                   size_check("read limit", in->read_limit, 0, 1e18, err) != 0
               ? -1
               : 0;
}

// What a machine of this size would have to reach.
static void put_mfu(const struct size_data *in, const char *name, double flops,
                    struct size_sheet *out) {
    if (!(flops > 0 && in->rate > 0)) return;
    double mfu = in->tokens_per_second * flops / in->rate;
    struct size_line *line = size_put(out, "data", name, mfu, "share");
    if (mfu > 1) size_note(line, NAN, "no machine of this size consumes so many tokens");
}

static void put_limits(const struct size_data *in, double bytes, double partitioned,
                       struct size_sheet *out) {
    if (in->read_limit > 0)
        size_put(out, "data", "share_of_read_bandwidth", bytes / in->read_limit, "share");
    if (!(in->metadata_limit > 0)) return;
    struct size_line *line =
        size_put(out, "data", "share_of_metadata_limit", partitioned / in->metadata_limit, "share");
    size_note(line, NAN, "of %.0f/s", in->metadata_limit);
    line = size_put(out, "data", "share_if_every_worker_opens_all",
                    partitioned * in->workers / in->metadata_limit, "share");
    if (line->value > 0.5)
        size_note(line, NAN, "partition the shards over workers, or make them larger");
}

// The same data in other shards.
static void put_shard_sizes(const struct size_data *in, struct size_sheet *out) {
    static const struct {
        const char *name;
        double tokens;
    } sizes[] = {{"1M_tokens", 1e6}, {"10M_tokens", 1e7}, {"100M_tokens", 1e8}, {"1G_tokens", 1e9}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        double opens = in->tokens_per_second / sizes[i].tokens * in->operations;
        struct size_line *line =
            size_put(out, "operations by shard size", sizes[i].name, opens, "/s");
        size_note(line, NAN, "%.4g MB each; %.4g/s if every worker opens all",
                  sizes[i].tokens * size_token_bytes(in->vocab) / 1e6, opens * in->workers);
    }
}

int size_data(const struct size_data *in, struct size_sheet *out, struct err *err) {
    if (check_data(in, err) != 0) return -1;
    int token_bytes = size_token_bytes(in->vocab);
    double bytes = in->tokens_per_second * token_bytes;
    double opens = in->tokens_per_second / in->shard_tokens * in->operations;
    size_put(out, "data", "tokens_per_second", in->tokens_per_second, "tok/s");
    put_mfu(in, "mfu_6n", in->products_per_token, out);
    put_mfu(in, "mfu_6n_12lht", in->flops_per_token, out);
    struct size_line *line = size_put(out, "data", "token_bytes", token_bytes, "B");
    if (token_bytes == 4)
        size_note(line, 2, "2 bytes hold 65,536 ids; %lld need 4", (long long)in->vocab);
    line = size_put(out, "data", "read_bandwidth", bytes, "B/s");
    if (token_bytes == 4) line->chapter = in->tokens_per_second * 2;
    size_put(out, "data", "read_bandwidth_of_a_worker", bytes / in->workers, "B/s");
    size_put(out, "data", "shard_bytes", in->shard_tokens * token_bytes, "B");
    line = size_put(out, "data", "metadata_operations", opens, "/s");
    size_note(line, NAN, "all workers together, each shard opened by one of them");
    line = size_put(out, "data", "if_every_worker_opens_all", opens * in->workers, "/s");
    size_note(line, NAN, "the figure of textbooks: only without partitioned shards");
    size_put(out, "data", "a_worker_opens_one_each",
             in->shard_tokens * in->workers / in->tokens_per_second, "s");
    line = size_put(out, "data", "operations_at_start", in->workers * in->operations, "");
    size_note(line, NAN, "at once, when all workers open their first shard");
    put_limits(in, bytes, opens, out);
    put_shard_sizes(in, out);
    return 0;
}

double size_saving(double dollars, double gain) {
    return dollars * (1 - 1 / (1 + gain));
}

static void put_gain(struct size_sheet *out, const char *name, double gain,
                     const struct size_packing *in, const char *note) {
    struct size_line *line = size_put(out, "packing", name, gain, "share");
    size_note(line, 0.2, "%s", note);
    if (in->accelerators > 0)
        size_put(out, "packing", "  as_accelerators", gain * in->accelerators, "");
    if (in->run_dollars > 0)
        size_put(out, "packing", "  saves", size_saving(in->run_dollars, gain), "$");
}

int size_packing(const struct size_packing *in, struct size_sheet *out, struct err *err) {
    if (size_check("context", (double)in->context, 1, 1e9, err) != 0 ||
        size_check("document tokens", in->document_tokens, 1, 1e12, err) != 0 ||
        size_check("run dollars", in->run_dollars, 0, 1e15, err) != 0)
        return -1;
    double context = (double)in->context, document = in->document_tokens;
    double rows = ceil(document / context);
    // a query sees half of its document, or of its row where the document is longer
    double packed = flops_per_token_pairs(in->model, (fmin(document, context) + 1) / 2);
    double chunked = flops_per_token_pairs(in->model, (context + 1) / 2);
    double padded = chunked * rows * context / document;
    double waste = 1 - document / (rows * context);
    size_put(out, "packing", "context", context, "tok");
    size_put(out, "packing", "document", document, "tok");
    struct size_line *line = size_put(out, "packing", "padding_waste", waste, "share");
    size_note(line, NAN, "one document per row");
    put_gain(out, "gain_over_padding_tokens", 1 / (1 - waste) - 1, in,
             "1 / (1 - waste): the rows that fall away");
    put_gain(out, "gain_over_padding", padded / packed - 1, in,
             "and the attention over padding, where it is computed");
    put_gain(out, "gain_over_concatenate_and_chunk", chunked / packed - 1, in,
             "the attention across documents that masked blocks skip");
    return 0;
}
