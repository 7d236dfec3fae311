// Shared by the sources of this room: the four sections of the catalogue, and their entries' fields
// as tables that the reader, the writer and the printed page follow.
#pragma once
#include "base/yaml.h"
#include "hardware/hardware.h"
#include "hardware/stack.h"
#include <stddef.h>

enum section_kind {
    SECTION_ACCELERATORS,
    SECTION_LINKS,
    SECTION_CLUSTERS,
    SECTION_STACKS,
    SECTIONS
};

// A cluster as it stands in the catalogue: its parts by name, so that a part that a later file
// replaces is found.
struct cluster_entry {
    struct cluster cluster;
    const char *accelerator, *fast, *slow;
};

enum field_kind {
    FIELD_FIGURE,
    FIELD_INT,
    FIELD_BOOL, // true or false, or one of two `names`
    FIELD_TEXT,
    FIELD_CHOICE,    // an enum's int; `names`
    FIELD_REFERENCE, // name of an entry of section `refers`
    FIELD_TILES,     // list of "MxN"
    FIELD_PRODUCTS,  // lists of measurements, see read_lists.c
    FIELD_ATTENTION,
    FIELD_POINTS,
    FIELD_MESSAGES,
    FIELD_KERNEL // list of two numbers: per element, fixed
};
enum field_unit {
    UNIT_BYTES,
    UNIT_BANDWIDTH,
    UNIT_FLOPS,
    UNIT_SECONDS,
    UNIT_WATTS,
    UNIT_SHARE, // 0 to 1
    UNIT_NUMBER,
    UNIT_MONEY,
    UNIT_PER_DAY,
    UNIT_PER_SECOND,
    UNITS
};
struct field {
    const char *key; // below the entry: "fabric.kind"
    size_t offset;
    double least, most;       // FIELD_INT; a figure's come from its unit
    double usual;             // of a figure that is not given: assumed; 0: stays absent
    const char *const *names; // FIELD_CHOICE, ends with NULL
    enum field_kind kind;
    enum field_unit unit;
    enum section_kind refers;
    bool needed; // an entry without it is refused
};
struct section {
    const char *name; // "accelerators"
    const char *one;  // "accelerator"
    size_t entry_bytes;
    const struct field *fields;
    int field_count;
};
const struct section *section_of(enum section_kind kind);
extern const char *const unit_words[UNITS]; // "bytes per second, such as 3.35 TB/s"
extern const char *const unit_names[UNITS]; // "B/s"

// A number with an optional unit. 0, or -1 with "expected ..., found ...".
int unit_read(const char *text, enum field_unit unit, double *out, struct err *err);
// The shortest decimal that reads back as the same double.
void unit_write(double value, char out[32]);

struct entries {
    void **entry; // each begins with its name
    int count, capacity;
    const char **names; // ends with NULL
};
struct catalogue {
    struct entries sections[SECTIONS];
    void **kept; // texts, entries and lists; freed at close
    size_t kept_count, kept_capacity;
    struct added {
        enum section_kind section;
        const char *name;
    } * added; // entries of the file that was read last
    int added_count;
};
// Memory that lives as long as the catalogue. NULL with a message.
void *catalogue_room(struct catalogue *catalogue, size_t bytes, struct err *err);
const char *catalogue_text(struct catalogue *catalogue, const char *text, struct err *err);
void *catalogue_find(const struct catalogue *catalogue, enum section_kind kind, const char *name);
int catalogue_put(struct catalogue *catalogue, enum section_kind kind, void *entry,
                  struct err *err);
// The entries of one section of a file. Sections are read in their order, so that clusters find
// what they refer to, wherever it stands.
int catalogue_read(struct catalogue *catalogue, enum section_kind section,
                   const struct yaml_leaves *leaves, const char *name, struct err *err);

// Built in: the files of the folder hardware/, made into C by cmake/embed.cmake.
struct builtin_file {
    const char *name, *text;
};
extern const struct builtin_file builtin_files[]; // ends with NULL
