// What a host's agent tells of it; see agent_parts.h.
#include "base/clock.h"
#include "base/file.h"
#include "base/version.h"
#include "device/device.h"
#include "operate/agent_parts.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

// ---- the disk of the run folder -----------------------------------------------------------------

// Of the folder, or of the nearest one above it that exists.
static bool measure(const char *folder, uint64_t *free_bytes, uint64_t *total_bytes) {
    char path[4096];
    struct statvfs s;
    snprintf(path, sizeof path, "%s", folder);
    while (statvfs(path, &s) != 0) {
        char *slash = strrchr(path, '/');
        if (!slash || !path[1]) return false;
        if (slash == path) slash++;
        *slash = 0;
    }
    *free_bytes = (uint64_t)s.f_bavail * s.f_frsize;
    *total_bytes = (uint64_t)s.f_blocks * s.f_frsize;
    return true;
}

static void *watch_disk(void *context) {
    struct agent_disk *disk = context;
    pthread_mutex_lock(&disk->lock);
    while (!disk->stop) {
        uint64_t free_bytes, total_bytes;
        pthread_mutex_unlock(&disk->lock);
        bool found = measure(disk->folder, &free_bytes, &total_bytes);
        pthread_mutex_lock(&disk->lock);
        if (found) {
            disk->free_bytes = free_bytes;
            disk->total_bytes = total_bytes;
            disk->seen = clock_seconds();
        }
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
        if (!disk->stop) pthread_cond_timedwait(&disk->wake, &disk->lock, &until);
    }
    pthread_mutex_unlock(&disk->lock);
    return NULL;
}

int agent_disk_open(struct agent_disk *disk, const char *folder, struct err *err) {
    *disk = (struct agent_disk){0};
    snprintf(disk->folder, sizeof disk->folder, "%s", folder);
    pthread_mutex_init(&disk->lock, NULL);
    pthread_cond_init(&disk->wake, NULL);
    if (pthread_create(&disk->thread, NULL, watch_disk, disk) == 0) return 0;
    return err_set(err, ERR_IO, "the agent cannot start a thread");
}

void agent_disk_close(struct agent_disk *disk) {
    pthread_mutex_lock(&disk->lock);
    disk->stop = true;
    pthread_cond_signal(&disk->wake);
    pthread_mutex_unlock(&disk->lock);
    pthread_join(disk->thread, NULL);
    pthread_cond_destroy(&disk->wake);
    pthread_mutex_destroy(&disk->lock);
}

// ---- messages -----------------------------------------------------------------------------------

static uint64_t kilobytes_of(const char *text, const char *key) {
    const char *at = strstr(text, key);
    return at ? strtoull(at + strlen(key), NULL, 10) * 1024 : 0;
}

static void add_memory(json_t *facts) {
    char *text;
    size_t size;
    if (file_read("/proc/meminfo", 0, &text, &size, NULL) != 0) return;
    json_object_set_new(facts, "memory_free_bytes",
                        json_integer((json_int_t)kilobytes_of(text, "MemAvailable:")));
    json_object_set_new(facts, "memory_total_bytes",
                        json_integer((json_int_t)kilobytes_of(text, "MemTotal:")));
    free(text);
}

json_t *agent_facts(const struct agent_options *options, struct agent_disk *disk) {
    uint64_t free_bytes, total_bytes;
    json_t *facts = json_pack("{s:s, s:f}", "type", "facts", "time", clock_wall_seconds());
    if (!facts) return NULL;
    add_memory(facts);
    if (measure(options->snapshot_folder, &free_bytes, &total_bytes))
        json_object_set_new(facts, "snapshot_free_bytes", json_integer((json_int_t)free_bytes));
    pthread_mutex_lock(&disk->lock);
    if (disk->seen > 0) {
        json_object_set_new(facts, "disk_free_bytes", json_integer((json_int_t)disk->free_bytes));
        json_object_set_new(facts, "disk_total_bytes", json_integer((json_int_t)disk->total_bytes));
        json_object_set_new(facts, "disk_age_seconds", json_real(clock_seconds() - disk->seen));
    }
    pthread_mutex_unlock(&disk->lock);
    return facts;
}

// "avx512-bf16": what the device of a rank here would compute with.
static void instruction_set(char out[32]) {
    struct device device;
    struct device_cpu_options options = {.threads = 1};
    snprintf(out, 32, "unknown");
    if (device_cpu_open(&device, &options, NULL) != 0) return;
    if (strncmp(device.name, "cpu ", 4) == 0)
        snprintf(out, 32, "%.*s", (int)strcspn(device.name + 4, ","), device.name + 4);
    device.close(&device);
}

static void machine(char out[160]) {
    char boot[64] = "", net[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file) {
        if (!fgets(boot, sizeof boot, file)) boot[0] = 0;
        fclose(file);
    }
    boot[strcspn(boot, "\n")] = 0;
    ssize_t size = readlink("/proc/self/ns/net", net, sizeof net - 1);
    net[size > 0 ? size : 0] = 0;
    snprintf(out, 160, "%s %s", boot, net);
}

json_t *agent_hello(const struct agent_options *options, const char *address, int port) {
    char isa[32], name[160];
    instruction_set(isa);
    machine(name);
    return json_pack("{s:s, s:s, s:s, s:i, s:f, s:s, s:s, s:s, s:i, s:s}", "type", "hello", "role",
                     "agent", "host", options->host, "pid", (int)getpid(), "time",
                     clock_wall_seconds(), "isa", isa, "binary", version_digest(), "address",
                     address, "port", port, "machine", name);
}
