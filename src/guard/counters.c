// The machine's own error counters, see counters.h.
#include "guard/counters.h"
#include "base/file.h"
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---- EDAC: a folder per memory controller ------------------------------------------------------

static int read_count(const char *folder, const char *controller, const char *name, int64_t *sum,
                      struct err *err) {
    char path[4096], *text, *end;
    size_t size;
    int length = snprintf(path, sizeof path, "%s/%s/%s", folder, controller, name);
    if (length >= (int)sizeof path)
        return err_set(err, ERR_USAGE, "%s: the path of the memory error counters is too long",
                       folder);
    if (file_read(path, 4096, &text, &size, err) != 0) return -1;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    while (isspace((unsigned char)*end)) end++;
    bool good = end != text && *end == 0 && errno == 0 && value >= 0;
    if (good)
        *sum += value;
    else
        err_set(err, ERR_DATA, "%s: expected a count of memory errors, found \"%.40s\"", path,
                text);
    free(text);
    return good ? 0 : -1;
}

static bool is_controller(const char *name) {
    return strncmp(name, "mc", 2) == 0 && isdigit((unsigned char)name[2]);
}

static int read_edac(const char *folder, struct counters *out, struct err *err) {
    char **names;
    size_t count;
    int result = 0;
    if (!file_is_folder(folder)) return 0;
    if (file_list(folder, &names, &count, err) != 0) return -1;
    for (size_t i = 0; i < count && result == 0; i++) {
        if (!is_controller(names[i])) continue;
        out->has_edac = true;
        result = read_count(folder, names[i], "ce_count", &out->corrected, err);
        if (result == 0) result = read_count(folder, names[i], "ue_count", &out->uncorrected, err);
    }
    file_list_free(names, count);
    return result;
}

// ---- NVML: the few functions that are needed, by their documented signatures --------------------

enum { NVML_CORRECTED = 0, NVML_UNCORRECTED = 1, NVML_VOLATILE = 0 };
enum { NVML_NOT_SUPPORTED = 3, NVML_NO_DRIVER = 9 }; // results; 0: success
struct nvml {
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *count);
    int (*handle)(unsigned index, void **device);
    int (*errors)(void *device, int type, int counter, unsigned long long *count);
};

static int find_functions(void *library, struct nvml *n) {
    *(void **)&n->init = dlsym(library, "nvmlInit_v2");
    *(void **)&n->shutdown = dlsym(library, "nvmlShutdown");
    *(void **)&n->count = dlsym(library, "nvmlDeviceGetCount_v2");
    *(void **)&n->handle = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    *(void **)&n->errors = dlsym(library, "nvmlDeviceGetTotalEccErrors");
    return n->init && n->shutdown && n->count && n->handle && n->errors ? 0 : -1;
}

static int fail_gpu(struct counters *out, const char *call, int result) {
    snprintf(out->gpu_unread, sizeof out->gpu_unread, "%s answered with %d", call, result);
    return -1;
}

// A GPU without ECC counts nothing.
static int add_errors(const struct nvml *n, void *device, int type, int64_t *sum,
                      struct counters *out) {
    unsigned long long count = 0;
    int result = n->errors(device, type, NVML_VOLATILE, &count);
    if (result == NVML_NOT_SUPPORTED) return 0;
    if (result != 0) return fail_gpu(out, "nvmlDeviceGetTotalEccErrors", result);
    *sum += (int64_t)count;
    return 0;
}

static int read_gpu(const struct nvml *n, unsigned index, struct counters *out) {
    void *device;
    int result = n->handle(index, &device);
    if (result != 0) return fail_gpu(out, "nvmlDeviceGetHandleByIndex_v2", result);
    return add_errors(n, device, NVML_CORRECTED, &out->gpu_corrected, out) != 0
               ? -1
               : add_errors(n, device, NVML_UNCORRECTED, &out->gpu_uncorrected, out);
}

static void read_gpus(const struct nvml *n, struct counters *out) {
    unsigned count = 0;
    int result = n->init();
    if (result == NVML_NO_DRIVER) return; // a library without GPUs
    if (result != 0) {
        fail_gpu(out, "nvmlInit_v2", result);
        return;
    }
    result = n->count(&count);
    if (result != 0) fail_gpu(out, "nvmlDeviceGetCount_v2", result);
    for (unsigned i = 0; i < count && result == 0; i++) result = read_gpu(n, i, out);
    out->has_gpu = result == 0 && count > 0;
    n->shutdown();
}

static int read_nvml(const char *path, struct counters *out, struct err *err) {
    struct nvml n;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return 0;
    int result = find_functions(library, &n);
    if (result == 0)
        read_gpus(&n, out);
    else
        err_set(err, ERR_DATA, "%s: lacks functions of NVML; is it another library?", path);
    dlclose(library);
    return result;
}

// ---- XIDs: "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."
// ------------------

static bool is_serious(int xid) {
    static const int serious[] = {48, 63, 64, 74, 79, 94, 95};
    for (size_t i = 0; i < sizeof serious / sizeof serious[0]; i++)
        if (serious[i] == xid) return true;
    return false;
}

static void look_at_line(const char *line, int64_t at, struct counters *out) {
    const char *found = strstr(line, "NVRM: Xid (");
    const char *behind = found ? strstr(found, "): ") : NULL;
    if (!behind || !isdigit((unsigned char)behind[3])) return;
    int xid = (int)strtol(behind + 3, NULL, 10);
    out->xid_count++;
    out->last_xid = xid;
    out->last_xid_at = at;
    snprintf(out->last_xid_text, sizeof out->last_xid_text, "%s", found);
    if (!is_serious(xid)) return;
    out->serious_xid = xid;
    out->serious_xid_at = at;
    snprintf(out->serious_text, sizeof out->serious_text, "%s", found);
}

// The kernel's device gives one record a read, "priority,number,time,flags;text\nmore lines".
static void look_at_record(char *record, struct counters *out) {
    char *text = strchr(record, ';'), *comma = strchr(record, ',');
    if (!text || !comma || comma > text) return;
    char *end = strchr(text, '\n');
    if (end) *end = 0;
    look_at_line(text + 1, strtoll(comma + 1, NULL, 10), out);
}

static void read_device(int fd, struct counters *out) {
    char record[8192];
    for (;;) {
        ssize_t got = read(fd, record, sizeof record - 1);
        if (got < 0 && (errno == EINTR || errno == EPIPE)) continue; // EPIPE: some were overwritten
        if (got <= 0) return;
        record[got] = 0;
        look_at_record(record, out);
    }
}

static int read_text(const char *path, struct counters *out, struct err *err) {
    char *text, *rest, *line;
    size_t size;
    int64_t number = 0;
    if (file_read(path, 0, &text, &size, err) != 0) return -1;
    for (line = rest = text; (line = strsep(&rest, "\n")) != NULL; number++)
        look_at_line(line, number, out);
    free(text);
    return 0;
}

static int read_log(const char *path, struct counters *out, struct err *err) {
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC), result = 0;
    if (fd < 0) {
        if (errno != ENOENT && errno != ENXIO && errno != ENODEV)
            snprintf(out->log_unread, sizeof out->log_unread, "%.100s: %s", path, strerror(errno));
        return 0;
    }
    bool device = lseek(fd, 0, SEEK_END) < 0 || strncmp(path, "/dev/", 5) == 0;
    out->has_log = true;
    if (device) {
        lseek(fd, 0, SEEK_SET); // of this device: the oldest record
        read_device(fd, out);
    } else {
        result = read_text(path, out, err);
    }
    close(fd);
    return result;
}

int counters_read(const struct counters_places *places, struct counters *out, struct err *err) {
    static const struct counters_places own = {"/sys/devices/system/edac/mc", "libnvidia-ml.so.1",
                                               "/dev/kmsg"};
    const char *edac = places && places->edac_folder ? places->edac_folder : own.edac_folder;
    const char *nvml = places && places->nvml_library ? places->nvml_library : own.nvml_library;
    const char *log = places && places->kernel_log ? places->kernel_log : own.kernel_log;
    struct counters c = {.last_xid_at = -1, .serious_xid_at = -1};
    if (read_edac(edac, &c, err) != 0 || read_nvml(nvml, &c, err) != 0 ||
        read_log(log, &c, err) != 0)
        return -1;
    *out = c;
    return 0;
}

// ---- from one time to the next

static int compare_worst(const struct counters *before, const struct counters *now, bool edac,
                         bool gpu, bool log, char why[300]) {
    if (edac && now->uncorrected > before->uncorrected)
        snprintf(why, 300, "memory: %lld uncorrected errors, %lld before (EDAC)",
                 (long long)now->uncorrected, (long long)before->uncorrected);
    else if (gpu && now->gpu_uncorrected > before->gpu_uncorrected)
        snprintf(why, 300, "GPU memory: %lld uncorrected errors, %lld before (NVML)",
                 (long long)now->gpu_uncorrected, (long long)before->gpu_uncorrected);
    else if (log && now->serious_xid_at > before->serious_xid_at)
        snprintf(why, 300, "XID %d in the kernel log: %s", now->serious_xid, now->serious_text);
    return why[0] ? 2 : 0;
}

int counters_compare(const struct counters *before, const struct counters *now, char why[300]) {
    bool edac = before->has_edac && now->has_edac, gpu = before->has_gpu && now->has_gpu;
    bool log = before->has_log && now->has_log;
    why[0] = 0;
    if (compare_worst(before, now, edac, gpu, log, why) > 0) return 2;
    if (edac && now->corrected > before->corrected)
        snprintf(why, 300, "memory: %lld corrected errors, %lld before (EDAC)",
                 (long long)now->corrected, (long long)before->corrected);
    else if (gpu && now->gpu_corrected > before->gpu_corrected)
        snprintf(why, 300, "GPU memory: %lld corrected errors, %lld before (NVML)",
                 (long long)now->gpu_corrected, (long long)before->gpu_corrected);
    else if (log && now->last_xid_at > before->last_xid_at)
        snprintf(why, 300, "XID %d in the kernel log: %s", now->last_xid, now->last_xid_text);
    return why[0] ? 1 : 0;
}

static void grow(int64_t *known, int64_t now) {
    if (now > *known) *known = now;
}

void counters_learn(struct counters *known, const struct counters *now) {
    if (now->has_edac) {
        known->has_edac = true;
        grow(&known->corrected, now->corrected);
        grow(&known->uncorrected, now->uncorrected);
    }
    if (now->has_gpu) {
        known->has_gpu = true;
        grow(&known->gpu_corrected, now->gpu_corrected);
        grow(&known->gpu_uncorrected, now->gpu_uncorrected);
    }
    if (!now->has_log) return;
    known->has_log = true;
    grow(&known->last_xid_at, now->last_xid_at);
    grow(&known->serious_xid_at, now->serious_xid_at);
}
