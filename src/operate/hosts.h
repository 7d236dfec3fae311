// A hosts file: which machines a run may use, one a line.
//
//   # name or address, and how many ranks it takes (1 when not said)
//   node01 slots=4
//   node02 slots=4
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>

struct host {
    char *name;
    int slots;
    int line; // of the file; 0: none
};
struct hosts {
    struct host *list;
    int count;
    long slots; // of all
};

// Errors (ERR_USAGE) name file, line and what was expected there.
int hosts_read(struct hosts *hosts, const char *path, struct err *err);
void hosts_free(struct hosts *hosts);

// Asks for every name's address. Errors (ERR_USAGE) name file and line: a name that is not known,
// or two names of one machine.
int hosts_resolve(const struct hosts *hosts, const char *path, struct err *err);
// Is this name, or address, one of this machine's own?
bool hosts_is_here(const char *name);
// The address of this machine that `name` sees, as text: where processes there can reach it.
int hosts_address_towards(const char *name, char *out, size_t out_bytes, struct err *err);
