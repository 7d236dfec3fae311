// The images of a run on all hosts, and a state put together from them. Inside the room only.
#pragma once
#include "checkpoint/checkpoint_parts.h"
#include "checkpoint/snapshot_parts.h"

struct gather_record { // of one .json, known to all ranks
    struct snapshot_image image;
    uint64_t text_hash;
    int64_t leader, group; // rank that found it; number of its host
    int64_t own;           // by a rank of that host, not brought by an agent
    char name[64];         // "gen-0/rank-00003", below the memory folder
};

struct gather {
    struct comm_stream *world;
    char folder[CHECKPOINT_PATH_BYTES]; // this rank's
    const char *run;
    int64_t *group; // [ranks] number of each rank's host: the lowest rank there
    struct gather_record *records;
    int64_t count;
    struct snapshot_image *states; // that have an image of every rank
    int state_count;
};

// Collective. `folder` NULL: this rank's host has none.
int gather_images(struct gather *g, const char *folder, const char *run, struct comm_stream *world,
                  struct err *err);
void gather_close(struct gather *g);
// State number `index`; false: there are no more.
bool gather_state(const struct gather *g, int index, struct snapshot_image *out);
// Verifies the images of a state, and opens it. Collective. *buddy: an image was needed that an
// agent has brought.
int gather_open(struct gather *g, const struct snapshot_image *state, struct checkpoint **out,
                bool *buddy, struct err *err);
