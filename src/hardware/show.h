// An entry of the catalogue line by line, for people and as JSON.
#pragma once
#include "hardware/hardware.h"

struct hardware_line {
    const char *key;       // "fabric.oversubscription"
    char text[96];         // "3.35 TB/s", "true", "fat-tree"
    const char *long_text; // in place of `text` where that would be too short; NULL else
    bool is_figure, is_number;
    double number;    // in the base unit
    const char *unit; // "B/s"; "" for pure numbers
    enum figure_origin origin;
    const char *source;
};
const char *figure_origin_name(enum figure_origin origin); // "stated"

// Calls `line` for every field of the entry that is given. kind: "accelerators", "links",
// "clusters" or "stacks". Returns the number of lines; 0: there is no such entry.
int hardware_lines(const struct catalogue *catalogue, const char *kind, const char *name,
                   void (*line)(void *context, const struct hardware_line *line), void *context);
// The sections in their order; ends with NULL.
extern const char *const hardware_kinds[];
// The entries that the file added last holds, one after the other: kind and name. Returns their
// number.
int catalogue_added(const struct catalogue *catalogue, int index, const char **kind,
                    const char **name);
