// What a replay says about a suspect step (silent data corruption, layer 3): pure decisions over
// digests that ranks have gathered, so that all of them decide alike.
//
// The step is computed again by the same ranks, and once more with every data rank doing the work
// of the one before it. Computing is deterministic, so three digests of one replica's gradients
// must be equal; which differ tells who was wrong, and whether again. Where they are equal and a
// checksum complains again, it matters who else complains of the same work: nobody, then the rank's
// memory is at fault; whoever does it, then the program is.
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum replay_cause {
    REPLAY_SOFTWARE,   // every pass gave the same: data or program, no machine
    REPLAY_PASSING,    // a rank was wrong once and right again
    REPLAY_PERSISTENT, // a rank is wrong and stays so
    REPLAY_UNDECIDED   // two ranks contradict each other, and nothing else speaks
};
const char *replay_cause_name(enum replay_cause cause); // "passing fault", ...

struct replay_part {       // one rank's share of the step
    int rank;              // world rank that did it, twice
    uint64_t first, again; // digests of its two passes
    int other;             // world rank that did the same work; -1: none
    uint64_t elsewhere;    // its digest
    bool found;            // a checksum on `rank` complained of its work when that was done again
    bool found_elsewhere;  // and on `other`
};
struct replay_verdict {
    enum replay_cause cause;
    int rank;      // of a fault; REPLAY_UNDECIDED: one of the two
    int other;     // REPLAY_UNDECIDED: the other; else -1
    char why[240]; // one sentence
};
// Parts in any order. Of several faults the gravest, of the lowest rank.
void replay_decide(const struct replay_part *parts, int count, struct replay_verdict *out);

// Which of the members that hold one value alike is wrong. The value of most members is right; with
// two sides of equal size, `truth` (the owner's master, or a replay's digest) decides when given.
// Sets wrong[i]; returns how many are wrong, or -1 when nothing decides.
int replay_majority(const uint64_t *digests, int count, const uint64_t *truth, bool *wrong);
