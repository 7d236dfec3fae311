// The configuration of a run under weft launch: resolved once from the user's file and words, kept
// as RUN/launch/config.yaml, which all ranks of all attempts read, so that a file that is edited
// meanwhile changes nothing by accident.
#pragma once
#include "train/config.h"

enum { LAUNCH_WORDS = 8 }; // that are handed on to the ranks

struct launch_config {
    const char *path; // of the user's file
    char **settings;  // key=value
    int setting_count;
    const char *passed[LAUNCH_WORDS]; // --json, --hardware FILE
    int passed_count;
    struct train_config *resolved;
    int unit;         // ranks of a data-parallel replica
    char copy[4096];  // path
    struct text text; // of it
};
// `words`: "train" and its arguments. Checks the layout on so many ranks, too.
int launch_config_open(struct launch_config *c, char **words, int count, int ranks,
                       struct err *err);
void launch_config_close(struct launch_config *c);
// What changed since the last launch of this run, as lines; returns how many keys. 0 as well where
// no step of the run was done yet. -1 with err.
int launch_config_compare(struct launch_config *c, struct text *changes, struct err *err);
int launch_config_keep(struct launch_config *c, struct err *err); // writes the copy
// Reads the file anew, with further key=value words (kept for later), and writes the copy.
int launch_config_reload(struct launch_config *c, int ranks, char *const *words, int count,
                         struct text *changes, struct err *err);
// What the file says by now and the copy does not; a file that cannot be read says so.
void launch_config_changed(struct launch_config *c, int ranks, struct text *changes);
bool launch_config_fits(const struct launch_config *c, int ranks, int replicas);
// "17, 4, 203": the samples of a step.
int launch_config_samples(const struct launch_config *c, int64_t step, struct text *out,
                          struct err *err);
