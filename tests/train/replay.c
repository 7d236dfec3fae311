// Runs in which a fault comes again while its step is computed again: who is given up, and when
// nobody is.
#include "ranks.h"
#include "test.h"
#include <stdio.h>

// Words of a run whose step 6 has this fault in all its passes, on one rank or (-1) on all.
static const char *const *lasting(const char *fault, int where, const char *const *more) {
    static const char *words[32];
    static char kind[64], place[32];
    int count = 0;
    snprintf(kind, sizeof kind, "fault.kind=%s", fault);
    snprintf(place, sizeof place, "fault.rank=%d", where);
    const char *const usual[] = {
        kind, place, "fault.step=6", "fault.steps=1", "fault.bit=30", "guard.products_every=1"};
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++) words[count++] = usual[i];
    for (; *more; more++) words[count++] = *more;
    words[count] = NULL;
    return words;
}

static const char *const computed[] = {"flip_gradient", "flip_product"};

// The machine at fault leaves, and what it has computed is nowhere in what the others go on from.
TEST(a_fault_that_comes_again_on_one_rank_is_persistent) {
    for (int i = 0; i < RANKS_LAYOUTS; i++) {
        char name[32];
        snprintf(name, sizeof name, "clean %d", i);
        ranks_run_to_end(name, 2, ranks_layouts[i]);
        struct ranks_outcome clean = ranks_outcome(12);
        for (int k = 0; k < 2; k++) {
            snprintf(name, sizeof name, "%s %d", computed[k], i);
            ranks_run(name, 2, lasting(computed[k], 1, ranks_layouts[i]));
            RANKS_STATUSES(75, 76);
            CHECK_CONTAINS(ranked[1].err.text, "rank 1 (");
            CHECK_CONTAINS(ranked[1].err.text, "cannot be trusted: step 6: ");
            CHECK_CONTAINS(ranked[1].err.text, "persistent fault: ");
            CHECK_EQ_INT(ranks_events("silent_corruption"), 1); // by the first replay
            CHECK(ranked[0].result.silent && !ranked[1].result.silent);
            ranks_run_to_end(name, 2, ranks_layouts[i]);
            CHECK_EQ_INT(ranked[0].result.resumed_from, 4);
            CHECK_SAME(ranks_outcome(12), clean);
        }
    }
}

// No checksum complains of a NaN: whose results nobody else gets is at fault. Two cannot tell.
TEST(a_nan_that_comes_again_on_one_rank_is_persistent) {
    ranks_run("three", 3, lasting("nan", 1, WORDS("parallel.dp=3", "train.batch=6")));
    RANKS_STATUSES(75, 76, 75);
    CHECK_CONTAINS(ranked[1].err.text, "rank 1 repeats a result that no other rank gets");
    ranks_run("two", 2, lasting("nan", 1, WORDS("parallel.dp=2")));
    RANKS_STATUSES(76, 76);
    CHECK_CONTAINS(ranked[0].err.text, "or rank 1 (");
}

TEST(a_fault_that_every_rank_shows_alike_is_software) {
    for (int i = 0; i < RANKS_LAYOUTS; i++)
        for (int k = 0; k < 2; k++) {
            char name[32];
            snprintf(name, sizeof name, "%s %d", computed[k], i);
            ranks_run(name, 2, lasting(computed[k], -1, ranks_layouts[i]));
            RANKS_STATUSES(70, 70);
            CHECK_CONTAINS(ranked[0].err.text, "step 6: ");
            CHECK_CONTAINS(ranked[0].err.text, "computed again it is the same");
            CHECK_CONTAINS(ranked[0].err.text, "no machine, but this program");
            CHECK(!ranked[0].result.silent && ranked[1].result.silent);
            CHECK_EQ_INT(ranks_events("software_fault"), 1);
            CHECK_EQ_INT(ranks_events("silent_corruption"), 0);
        }
    ranks_run_to_end("nan", 2,
                     lasting("nan", -1, WORDS("parallel.dp=2"))); // as bad samples give it
    CHECK_EQ_INT(ranks_skipped_step(), 6);
}
