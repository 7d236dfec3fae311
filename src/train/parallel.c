// See parallel.h.
#include "train/parallel.h"
#include "base/clock.h"
#include "base/file.h"
#include "observe/trace.h"
#include <stdio.h>
#include <stdlib.h>

int parallel_join(const struct train_config *config, const struct launch_environment *launch,
                  uint64_t trace_spans, struct comm **out, struct err *err) {
    struct comm_options options;
    *out = NULL;
    if (!launch || launch->ranks <= 1) return 0;
    config_comm(config, &options);
    options.expected_ranks = launch->ranks;
    options.trace_spans = trace_spans;
    return comm_open_mpi(out, &options, err);
}

struct comm_stream *parallel_world(struct comm *comm, const char *name, struct err *err) {
    int count = comm_size(comm), *all = malloc((size_t)count * sizeof *all);
    if (!all) {
        err_set(err, ERR_MEMORY, "no memory for the list of ranks");
        return NULL;
    }
    for (int i = 0; i < count; i++) all[i] = i;
    struct comm_stream *stream = comm_stream_open(comm, name, all, count, err);
    free(all);
    return stream;
}

int parallel_describe(const struct train_config *config, struct comm *comm,
                      const struct layout *layout, char **schedule_csv, struct engine_parallel *out,
                      struct err *err) {
    size_t bytes;
    *schedule_csv = NULL;
    if (config->pipeline == PIPELINE_FILE &&
        file_read(config->pipeline_file, 0, schedule_csv, &bytes, err) != 0)
        return err_context(err, "pipeline.file");
    config_parallel(config, out);
    out->comm = comm;
    out->rank = comm ? comm_rank(comm) : 0;
    out->layout = layout;
    out->schedule_csv = *schedule_csv;
    return 0;
}

int parallel_write_trace(const char *wanted, struct comm *comm,
                         const struct record_lane *const *lanes, int count, char *path,
                         size_t path_bytes, struct err *err) {
    snprintf(path, path_bytes, "%s", wanted);
    if (!comm || comm_size(comm) == 1) return trace_write(path, lanes, count, err);
    int own = comm_rank(comm);
    struct trace_rank rank = {own, comm_size(comm), comm_host(comm, own),
                              clock_wall_seconds() - clock_seconds()};
    if (trace_rank_path(path, path_bytes, wanted, own, err) != 0) return -1;
    return trace_write_rank(path, lanes, count, &rank, err);
}
