// See world.h.
#include "train/world.h"
#include "base/affinity.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/version.h"
#include "train/config_table.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// What is gathered from every rank. Texts of fixed length: programs of two versions must be able
// to compare them.
enum { DIGEST_BYTES = 32 };
struct identity {
    char program[DIGEST_BYTES], config[DIGEST_BYTES];
};

const char *world_ranks_text(const bool *marked, int ranks, char *out, size_t bytes) {
    enum { ROOM_FOR_REST = 24 };
    int rest = 0;
    out[0] = 0;
    for (int i = 0; i < ranks; i++) {
        int last = i;
        char text[32];
        if (!marked[i]) continue;
        while (last + 1 < ranks && marked[last + 1]) last++;
        if (last > i)
            snprintf(text, sizeof text, "%s%d-%d", out[0] ? ", " : "", i, last);
        else
            snprintf(text, sizeof text, "%s%d", out[0] ? ", " : "", i);
        if (rest == 0 && strlen(out) + strlen(text) + ROOM_FOR_REST < bytes)
            strcat(out, text);
        else
            rest += last - i + 1;
        i = last;
    }
    if (rest > 0) snprintf(out + strlen(out), bytes - strlen(out), " and %d more", rest);
    return out;
}

// ---- one program, one configuration -------------------------------------------------------------

static int gather(struct comm *comm, struct comm_stream *world, const void *own, void *all,
                  size_t bytes_each, struct err *err) {
    comm_wait(comm_all_gather(world, own, all, bytes_each), NULL);
    return comm_check(comm, err);
}

// The value that most ranks have; the lowest rank's among equals. `digest` is the first of
// `ranks`, `step` bytes apart.
static const char *most_common(const char *digest, size_t step, int ranks) {
    const char *best = digest;
    int best_count = 0;
    for (int i = 0; i < ranks; i++) {
        int count = 0;
        for (int j = 0; j < ranks; j++)
            count += strcmp(digest + step * (size_t)i, digest + step * (size_t)j) == 0;
        if (count > best_count) {
            best = digest + step * (size_t)i;
            best_count = count;
        }
        if (2 * best_count > ranks) break; // mostly at once: they all agree
    }
    return best;
}

struct dissent {
    char ranks[160], hosts[160];
    int first;                  // rank
    const char *usual, *theirs; // digests of most ranks, and of the first that differs
};

// Returns whether any rank differs.
static bool find_dissent(const struct comm *comm, const char *digest, size_t step, int ranks,
                         bool *marked, struct dissent *out) {
    *out = (struct dissent){.first = -1, .usual = most_common(digest, step, ranks)};
    for (int i = 0; i < ranks; i++) {
        const char *host = comm_host(comm, i);
        marked[i] = strcmp(digest + step * (size_t)i, out->usual) != 0;
        if (!marked[i]) continue;
        if (out->first < 0) {
            out->first = i;
            out->theirs = digest + step * (size_t)i;
        }
        size_t used = strlen(out->hosts);
        if (!strstr(out->hosts, host) && used + strlen(host) + 3 < sizeof out->hosts)
            snprintf(out->hosts + used, sizeof out->hosts - used, "%s%s", used ? ", " : "", host);
    }
    world_ranks_text(marked, ranks, out->ranks, sizeof out->ranks);
    return out->first >= 0;
}

static int many_programs(const struct dissent *d, struct err *err) {
    return err_set(err, ERR_USAGE,
                   "rank %s (%s) runs another program than most ranks: sources %s there, %s "
                   "elsewhere; install one build of weft on all hosts (weft --version shows it)",
                   d->ranks, d->hosts, d->theirs, d->usual);
}

// The keys in which `config` differs from the resolved text `usual`, in one line.
static void name_keys(const struct train_config *config, const char *usual, char *out,
                      size_t bytes) {
    struct train_config *other = malloc(sizeof *other);
    struct text lines = {0};
    if (other && config_load_text(other, usual, strlen(usual), "configuration", NULL) == 0) {
        for (int i = 0; i < config_option_count; i++) {
            const struct option *o = &config_options[i];
            struct text a = {0}, b = {0};
            if (config_write_value(config, o, &a) == 0 && config_write_value(other, o, &b) == 0 &&
                a.data && b.data && strcmp(a.data, b.data) != 0)
                text_printf(&lines, "%s%s is %s there, %s elsewhere", lines.size ? "; " : "",
                            o->key, a.data, b.data);
            text_free(&a);
            text_free(&b);
        }
    }
    snprintf(out, bytes, "%s", lines.data ? lines.data : "");
    text_free(&lines);
    free(other);
}

// Digests do not tell a user what to change. The ranks that differ get the text of the others, and
// the first of them tells all what it found.
static void compare_texts(struct comm *comm, struct comm_stream *world,
                          const struct train_config *config, int usual_rank, int first, char *found,
                          size_t bytes) {
    struct text own = {0};
    uint64_t size = 0;
    found[0] = 0;
    if (config_print(config, false, &own) == 0) size = own.size;
    comm_wait(comm_broadcast(world, usual_rank, &size, sizeof size), NULL);
    // A rank without memory for a text has none for the run either; its peers see it leave.
    char *usual = comm_check(comm, NULL) == 0 && size > 0 ? calloc(1, size + 1) : NULL;
    if (usual) {
        if (comm_rank(comm) == usual_rank) memcpy(usual, own.data, size);
        comm_wait(comm_broadcast(world, usual_rank, usual, size), NULL);
        if (comm_rank(comm) == first) name_keys(config, usual, found, bytes);
        comm_wait(comm_broadcast(world, first, found, bytes), NULL);
        found[bytes - 1] = 0;
    }
    free(usual);
    text_free(&own);
}

static int many_configurations(struct comm *comm, struct comm_stream *world,
                               const struct train_config *config, const struct dissent *d,
                               int usual_rank, struct err *err) {
    char keys[400];
    compare_texts(comm, world, config, usual_rank, d->first, keys, sizeof keys);
    return err_set(err, ERR_USAGE,
                   "rank %s (%s) has another configuration than most ranks: digest %s there, %s "
                   "elsewhere%s%s; start all ranks with the same file and the same words",
                   d->ranks, d->hosts, d->theirs, d->usual, keys[0] ? "; " : "", keys);
}

static int compare(struct comm *comm, struct comm_stream *world, const struct train_config *config,
                   struct identity *all, bool *marked, struct err *err) {
    int ranks = comm_stream_size(world);
    struct identity own = {{0}, {0}};
    struct dissent d;
    snprintf(own.program, sizeof own.program, "%s", version_digest());
    hash_text(config_digest(config), own.config);
    if (gather(comm, world, &own, all, sizeof own, err) != 0) return -1;
    for (int i = 0; i < ranks; i++)
        all[i].program[DIGEST_BYTES - 1] = all[i].config[DIGEST_BYTES - 1] = 0;
    if (find_dissent(comm, all[0].program, sizeof *all, ranks, marked, &d))
        return many_programs(&d, err);
    if (!find_dissent(comm, all[0].config, sizeof *all, ranks, marked, &d)) return 0;
    int usual_rank = 0;
    while (marked[usual_rank]) usual_rank++;
    return many_configurations(comm, world, config, &d, usual_rank, err);
}

int world_check(struct comm *comm, struct comm_stream *world, const struct train_config *config,
                struct err *err) {
    size_t ranks = (size_t)comm_stream_size(world);
    struct identity *all = calloc(ranks, sizeof *all);
    bool *marked = calloc(ranks, sizeof *marked);
    int result = all && marked ? compare(comm, world, config, all, marked, err)
                               : err_set(err, ERR_MEMORY, "no memory to compare the ranks");
    free(all);
    free(marked);
    return result;
}

// ---- warnings -----------------------------------------------------------------------------------

struct fit { // of a rank's threads to its cores
    int32_t verdict;
    char text[160];
};

// One line for all ranks of one kind of misfit. More ranks than cores are the user's own choice;
// a binding mostly is not.
static void warn_of(const struct comm *comm, const struct fit *fits, bool is_shared, bool *marked) {
    int ranks = comm_size(comm), first = -1;
    char list[160];
    for (int i = 0; i < ranks; i++) {
        marked[i] =
            fits[i].verdict != AFFINITY_FITS && (fits[i].verdict == AFFINITY_SHARED) == is_shared;
        if (marked[i] && first < 0) first = i;
    }
    if (first < 0) return;
    world_ranks_text(marked, ranks, list, sizeof list);
    if (is_shared)
        log_line(LOG_WARN,
                 "more threads than cores on the hosts of rank %s (%s: %s): they take turns", list,
                 comm_host(comm, first), fits[first].text);
    else
        log_line(LOG_WARN,
                 "threads and cores differ on rank %s (rank %d on %s: %s); start with \"weft "
                 "launch\" or \"mpirun --bind-to none\", or set device.threads",
                 list, first, comm_host(comm, first), fits[first].text);
}

static void warn_affinity(struct comm *comm, struct comm_stream *world,
                          const struct launch_environment *launch, int threads, bool *marked) {
    struct fit own = {.verdict = (int32_t)affinity_compare(launch, threads)};
    struct fit *fits = calloc((size_t)comm_size(comm), sizeof *fits);
    if (!fits) return;
    affinity_text(launch, threads, own.text);
    if (gather(comm, world, &own, fits, sizeof own, NULL) == 0 && comm_rank(comm) == 0) {
        warn_of(comm, fits, false, marked);
        warn_of(comm, fits, true, marked);
    }
    free(fits);
}

void world_crossing_text(const struct mesh *mesh, const char *const *host, char *out,
                         size_t bytes) {
    int ranks = mesh_ranks(mesh), crossing = 0, groups = 0, from = 0, to = 0;
    int *members = malloc(sizeof *members * (size_t)ranks);
    out[0] = 0;
    for (int rank = 0; members && rank < ranks; rank++) {
        int index, count = mesh_group(mesh, rank, GROUP_TP, 1, members, &index);
        if (index != 0) continue;
        groups++;
        for (int i = 1; i < count; i++)
            if (strcmp(host[members[i]], host[rank]) != 0) {
                if (crossing++ == 0) from = rank, to = members[i];
                break;
            }
    }
    free(members);
    if (crossing == 0) return;
    snprintf(out, bytes,
             "tensor parallelism crosses hosts in %d of %d groups (ranks %d on %s and %d on %s): "
             "every layer waits for the network several times. Let tp be last in parallel.order "
             "and divide the ranks of a host",
             crossing, groups, from, host[from], to, host[to]);
}

static void warn_crossing(const struct comm *comm, const struct mesh *mesh) {
    int ranks = comm_size(comm);
    const char **host = malloc(sizeof *host * (size_t)ranks);
    char text[1024];
    if (!host || comm_rank(comm) != 0 || mesh_ranks(mesh) != ranks) {
        free(host);
        return;
    }
    for (int i = 0; i < ranks; i++) host[i] = comm_host(comm, i);
    world_crossing_text(mesh, host, text, sizeof text);
    if (text[0]) log_line(LOG_WARN, "%s", text);
    free(host);
}

void world_warn(struct comm *comm, struct comm_stream *world, const struct mesh *mesh,
                const struct launch_environment *launch, int threads) {
    bool *marked = calloc((size_t)comm_stream_size(world), sizeof *marked);
    if (!marked) return;
    if (launch) warn_affinity(comm, world, launch, threads, marked);
    warn_crossing(comm, mesh);
    free(marked);
}
