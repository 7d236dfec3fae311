// See machine_file.h.
#include "cli/machine_file.h"
#include "base/affinity.h"
#include "base/file.h"
#include "device/device.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int machine_file_usual(char *out, size_t out_bytes, struct err *err) {
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    if (config && *config) return file_join(out, out_bytes, config, "weft/machine.yaml", err);
    if (home && *home) return file_join(out, out_bytes, home, ".config/weft/machine.yaml", err);
    return err_set(err, ERR_USAGE,
                   "neither HOME nor XDG_CONFIG_HOME is set, so the file of this machine has no "
                   "usual place: name one (bench hardware --out FILE, --hardware FILE)");
}

int machine_file_make_folder(const char *path, struct err *err) {
    char folder[4096];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash) slash[slash == folder] = 0;
    if (slash && file_make_folders(folder, err) != 0) return -1;
    return access(slash ? folder : ".", W_OK) == 0
               ? 0
               : err_set_errno(err, "%s cannot be written", path);
}

static int identify(struct machine_identity *out, struct err *err) {
    struct device device;
    struct device_cpu_options how = {.threads = 1};
    if (device_cpu_open(&device, &how, err) != 0) return -1;
    machine_identify(affinity_host_cpus(), device.name, out);
    device.close(&device);
    return 0;
}

int machine_file_open(struct machine_file *f, const char *path, struct err *err) {
    struct machine_identity here;
    struct err nowhere = {0};
    *f = (struct machine_file){0};
    if (path)
        snprintf(f->path, sizeof f->path, "%s", path);
    else if (machine_file_usual(f->path, sizeof f->path, &nowhere) != 0)
        f->path[0] = 0;
    if (catalogue_open(&f->catalogue, err) != 0) return -1;
    if (!path && !file_exists(f->path)) return 0;
    if (catalogue_cluster(f->catalogue, f->path, &f->cluster, err) != 0 ||
        identify(&here, err) != 0) {
        machine_file_close(f);
        return -1;
    }
    machine_same(&f->cluster, &here, f->warning, sizeof f->warning);
    f->found = true;
    return 0;
}

void machine_file_close(struct machine_file *f) {
    catalogue_close(f->catalogue);
    *f = (struct machine_file){0};
}
