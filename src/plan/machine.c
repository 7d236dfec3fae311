// See machine.h.
#include "plan/machine.h"
#include "base/hash.h"
#include "base/text.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// ---- identity -----------------------------------------------------------------------------------

static void read_processor(char *out, size_t bytes) {
    char line[512];
    FILE *file = fopen("/proc/cpuinfo", "re");
    snprintf(out, bytes, "unknown");
    while (file && fgets(line, sizeof line, file)) {
        char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !value) continue;
        value += 1 + strspn(value + 1, " ");
        value[strcspn(value, "\n")] = 0;
        snprintf(out, bytes, "%s", value);
        break;
    }
    if (file) fclose(file);
}

void machine_identify(int cores, const char *device_name, struct machine_identity *out) {
    *out = (struct machine_identity){.cores = cores};
    if (gethostname(out->host, sizeof out->host - 1) != 0)
        snprintf(out->host, sizeof out->host, "unknown");
    time_t now = time(NULL);
    struct tm broken;
    gmtime_r(&now, &broken);
    strftime(out->date, sizeof out->date, "%Y-%m-%d %H:%M UTC", &broken);
    read_processor(out->processor, sizeof out->processor);
    snprintf(out->isa, sizeof out->isa, "%s", device_name);
    char *threads = strrchr(out->isa, ','); // "cpu avx2, 2 threads"
    if (threads) *threads = 0;
    char text[512];
    snprintf(text, sizeof text, "%s|%d|%s", out->processor, cores, out->isa);
    hash_text(hash_string(text), out->digest);
}

bool machine_same(const struct cluster *measured, const struct machine_identity *here, char *out,
                  size_t out_bytes) {
    const char *digest = measured->digest ? measured->digest : "";
    out[0] = 0;
    if (strcmp(digest, here->digest) == 0) return true;
    snprintf(out, out_bytes,
             "%s was measured on another machine (%s, digest %s); this one is %s, %d cores, digest "
             "%s: predictions are those of the other",
             measured->name,
             measured->measured_on && *measured->measured_on ? measured->measured_on
                                                             : "not said where",
             *digest ? digest : "none", here->processor, here->cores, here->digest);
    return false;
}

// ---- the crew that is nearest -------------------------------------------------------------------

struct crew {
    int ranks, threads;
};

static double distance(int a, int b) {
    return fabs(log2((double)(a > 0 ? a : 1) / (double)(b > 0 ? b : 1)));
}

// Threads of a rank decide about the shape of its work, ranks only about what they share.
static void consider(struct crew *best, double *least, int ranks, int threads,
                     const struct crew *wanted) {
    double d = 4 * distance(threads, wanted->threads) + distance(ranks, wanted->ranks);
    if (*least >= 0 && d >= *least) return;
    *least = d;
    *best = (struct crew){ranks, threads};
}

static struct crew nearest_crew(const struct accelerator *a, const struct crew *wanted) {
    struct crew best = {0, 0};
    double least = -1;
    for (int i = 0; i < a->product_count; i++)
        consider(&best, &least, a->products[i].ranks, a->products[i].threads, wanted);
    for (int i = 0; i < a->attention_count && a->product_count == 0; i++)
        consider(&best, &least, a->attention[i].ranks, a->attention[i].threads, wanted);
    return best;
}

// ---- copies of the lists ------------------------------------------------------------------------

static bool is_of(const struct crew *crew, int ranks, int threads) {
    return ranks == crew->ranks && threads == crew->threads;
}

static int copy_lists(const struct accelerator *from, const struct crew *crew, double slowdown,
                      struct accelerator *to, struct err *err) {
    to->products = calloc((size_t)from->product_count + 1, sizeof *to->products);
    to->attention = calloc((size_t)from->attention_count + 1, sizeof *to->attention);
    to->kernel_points = calloc((size_t)from->kernel_point_count + 1, sizeof *to->kernel_points);
    to->product_count = to->attention_count = to->kernel_point_count = 0;
    if (!to->products || !to->attention || !to->kernel_points)
        return err_set(err, ERR_MEMORY, "no memory for the figures of a machine");
    for (int i = 0; i < from->product_count; i++) {
        struct hardware_product p = from->products[i];
        if (!is_of(crew, p.ranks, p.threads)) continue;
        p.seconds *= slowdown;
        to->products[to->product_count++] = p;
    }
    for (int i = 0; i < from->attention_count; i++) {
        struct hardware_attention p = from->attention[i];
        if (!is_of(crew, p.ranks, p.threads)) continue;
        p.forward_rate /= slowdown;
        p.backward_rate /= slowdown;
        to->attention[to->attention_count++] = p;
    }
    for (int i = 0; i < from->kernel_point_count; i++) {
        struct hardware_kernel_point p = from->kernel_points[i];
        if (!is_of(crew, p.ranks, p.threads)) continue;
        p.seconds *= slowdown;
        to->kernel_points[to->kernel_point_count++] = p;
    }
    return 0;
}

static void say_lacks(const struct cluster *measured, int ranks, struct machine *m) {
    const struct accelerator *a = &m->cluster.accelerator;
    const char *missing[4];
    int count = 0;
    if (a->product_count == 0) missing[count++] = "products";
    if (a->attention_count == 0) missing[count++] = "attention";
    if (a->kernel_point_count == 0) missing[count++] = "kernels";
    if (ranks > 1 && measured->message_count == 0) missing[count++] = "messages";
    for (int i = 0; i < count; i++)
        snprintf(m->lacks + strlen(m->lacks), sizeof m->lacks - strlen(m->lacks), "%s%s",
                 i ? ", " : "", missing[i]);
}

// The best rate of all cores, shared by the ranks.
static void share_rates(struct accelerator *a, int ranks, int threads, int cores) {
    double busy = ranks * threads < cores ? (double)(ranks * threads) / cores : 1;
    for (int p = 0; p < HARDWARE_PRECISIONS; p++) a->dense[p].value *= busy / ranks;
    a->memory_bandwidth.value /= ranks;
    a->memory_bytes.value /= ranks;
}

int machine_select(const struct cluster *measured, int ranks, int threads, struct machine *out,
                   struct err *err) {
    const struct accelerator *from = &measured->accelerator;
    int cores = measured->cores > 0 ? measured->cores : ranks * threads;
    int fit = cores / threads > 0 ? cores / threads : 1;
    struct crew wanted = {ranks < fit ? ranks : fit, threads < cores ? threads : cores};
    struct crew crew = nearest_crew(from, &wanted);
    *out = (struct machine){.cluster = *measured,
                            .crew_ranks = crew.ranks,
                            .crew_threads = crew.threads,
                            .slowdown = fmax(1, (double)ranks * threads / cores)};
    out->cluster.nodes = 1;
    out->cluster.per_node = out->cluster.domain = ranks;
    // a crew of other threads than wanted: its rate, in proportion
    double scale = out->slowdown;
    if (crew.threads > 0) scale *= (double)crew.threads / wanted.threads;
    if (copy_lists(from, &crew, scale, &out->cluster.accelerator, err) != 0) {
        machine_free(out);
        return -1;
    }
    share_rates(&out->cluster.accelerator, ranks, threads, cores);
    say_lacks(measured, ranks, out);
    return 0;
}

void machine_share(struct machine *m) {
    struct accelerator *a = &m->cluster.accelerator;
    for (int i = 0; i < a->product_count; i++) a->products[i].seconds /= m->slowdown;
    for (int i = 0; i < a->attention_count; i++) {
        a->attention[i].forward_rate *= m->slowdown;
        a->attention[i].backward_rate *= m->slowdown;
    }
    for (int i = 0; i < a->kernel_point_count; i++) a->kernel_points[i].seconds /= m->slowdown;
    m->slowdown = 1;
}

void machine_free(struct machine *m) {
    free(m->cluster.accelerator.products);
    free(m->cluster.accelerator.attention);
    free(m->cluster.accelerator.kernel_points);
    m->cluster.accelerator.products = NULL;
    m->cluster.accelerator.attention = NULL;
    m->cluster.accelerator.kernel_points = NULL;
}
