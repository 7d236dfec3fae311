// Where the file of this machine lies, and how the verbs that predict find it.
#pragma once
#include "base/error.h"
#include "hardware/hardware.h"
#include "plan/machine.h"
#include <stdbool.h>
#include <stddef.h>

#define MACHINE_FILE_HELP "$XDG_CONFIG_HOME/weft/machine.yaml, else ~/.config/weft/machine.yaml"

// -1 (ERR_USAGE) when the environment names no home.
int machine_file_usual(char *out, size_t out_bytes, struct err *err);
// That of the file, where a file can be written.
int machine_file_make_folder(const char *path, struct err *err);

struct machine_file {
    struct catalogue *catalogue;
    struct cluster cluster;
    char path[4096];
    bool found;        // false: no measured machine; the cluster is absent
    char warning[512]; // of another machine, or ""
};
// `path` NULL: the usual place, where the file may be missing (`found` false, 0 is returned). Gives
// the catalogue in any case.
int machine_file_open(struct machine_file *file, const char *path, struct err *err);
void machine_file_close(struct machine_file *file);
