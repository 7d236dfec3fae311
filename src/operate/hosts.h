// A hosts file: which machines a run may use, one a line.
//
//   # name or address, and how many ranks it takes (1 when not said)
//   node01 slots=4
//   node02 slots=4
#pragma once
#include "base/error.h"

struct host {
    char *name;
    int slots;
};
struct hosts {
    struct host *list;
    int count;
    long slots; // of all
};

// Errors (ERR_USAGE) name file, line and what was expected there.
int hosts_read(struct hosts *hosts, const char *path, struct err *err);
void hosts_free(struct hosts *hosts);
