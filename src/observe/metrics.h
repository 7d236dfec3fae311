// metrics.jsonl of a run: one JSON object a line, in the order of steps. Lines of steps have "step"
// and the figures below; lines of other events have "event" as well.
//
// After a resume the lines behind the loaded step are cut, so that the file reads as if the run had
// never stopped. A write that fails (full disk) is reported once and tried again with the next
// line; what could be written stays whole lines.
#pragma once
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/record.h"
#include "base/text.h"
#include "observe/mfu.h"
#include <stdbool.h>
#include <stdint.h>

struct metrics {
    struct file_writer file;
    char path[4096];
    uint64_t good_bytes; // whole lines that are in the file
    struct text pending; // lines that could not be written yet
    bool is_open, complained;
};

// Opens or makes the file; lines with a step above `last_step` are cut, and incomplete ones.
int metrics_open(struct metrics *m, const char *path, int64_t last_step, struct err *err);
void metrics_close(struct metrics *m);

struct metrics_step {
    int64_t step, samples;
    int64_t processed, non_pad, supervised; // tokens of this step, each once
    int64_t total_tokens;                   // processed since the beginning of the run
    double loss, gradient_norm, clip_factor, learning_rate;
    bool skipped;
    double seconds;                  // of the step, data wait included
    double phase[RECORD_KIND_COUNT]; // seconds by kind within this step
    double data_wait_seconds;
    uint64_t shard_opens, shard_reads; // within this step
    double open_seconds, read_seconds;
    double cores_busy; // share of the compute threads' time
    uint64_t resident_bytes;
    struct mfu mfu;
    // of layers with experts (has_experts): E sum f p, the largest load over the mean, and choices
    // dropped beyond the capacity
    bool has_experts;
    double expert_balance, expert_max_load;
    int64_t dropped;
};
void metrics_put_step(struct metrics *m, const struct metrics_step *s);
// {"event":NAME,"step":N,"time":...,FIELDS}: `fields` is JSON members without braces, or "".
void metrics_put_event(struct metrics *m, const char *event, int64_t step, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void metrics_put_line(struct metrics *m, const char *line); // as it is
// An event with the members of an object, of any length.
void metrics_put_object(struct metrics *m, const char *event, int64_t step, json_t *members);
