// What can be asked about messages from outside: status, journal, stalls; and what a failed world
// leaves behind.
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "ranks.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct comm_reduction *plain(void) {
    static struct comm_reduction r;
    r = comm_reduction_plain(DTYPE_F32, DTYPE_F32);
    return &r;
}

// ---- status -------------------------------------------------------------------------------------

static struct comm *asked; // the end of rank 0
static atomic_int stage, checked;

static void wait_for_stage(int s) {
    while (atomic_load(&stage) < s) usleep(200);
}

// Of rank 0, whose compute thread is in another thread.
static struct comm_status status_when(bool (*is)(const struct comm_status *)) {
    struct comm_status s;
    for (double until = clock_seconds() + 20; clock_seconds() < until; usleep(500)) {
        comm_status(asked, &s);
        if (is(&s)) return s;
    }
    test_fail(__FILE__, __LINE__, "waiting %d, oldest %s number %llu", s.waiting, s.oldest.stream,
              (unsigned long long)s.oldest.number);
}
static bool is_waiting(const struct comm_status *s) {
    return s->waiting && s->oldest.seconds > 0.05;
}
static bool is_idle(const struct comm_status *s) {
    return !s->waiting && s->oldest.number == 0;
}
static bool has_receive(const struct comm_status *s) {
    return s->waiting && s->oldest.number == 1 && s->oldest.kind == COMM_RECEIVE;
}

static void status_body(struct rank_case *rank) {
    struct comm_stream *s = ranks_stream(rank, "grad");
    float data[4] = {1, 2, 3, 4}, scratch[12];
    if (rank->rank == 0) {
        asked = rank->comm;
        comm_wait(comm_all_reduce(s, data, scratch, 4, plain()), NULL);
        comm_busy(rank->comm, "builds the index");
        atomic_store(&stage, 1);
        comm_wait(comm_all_reduce(s, data, scratch, 4, plain()), NULL);
        atomic_store(&stage, 3);
        wait_for_stage(4);
        comm_busy(rank->comm, NULL);
        comm_wait(comm_receive(rank->comm, 2, 9, data, 16), NULL);
        atomic_store(&stage, 6);
        wait_for_stage(7);
    } else if (rank->rank == 1) {
        comm_wait(comm_all_reduce(s, data, scratch, 4, plain()), NULL);
        wait_for_stage(1);
        struct comm_status at = status_when(is_waiting);
        CHECK_STR(at.oldest.stream, "grad");
        CHECK_EQ_INT(at.oldest.kind, COMM_ALL_REDUCE);
        CHECK_EQ_INT(at.oldest.number, 2);
        CHECK_EQ_INT(at.oldest.bytes, 16);
        CHECK_EQ_INT(at.member_count, 3);
        for (int i = 0; i < 3; i++) CHECK_EQ_INT(at.members[i], i);
        CHECK_EQ_INT(at.last.number, 2);
        CHECK_EQ_INT(at.stream_count, 1);
        CHECK_STR(at.streams[0].stream, "grad");
        CHECK_EQ_INT(at.streams[0].first_member, 0);
        CHECK_EQ_INT(at.streams[0].posted, 2);
        CHECK_STR(at.busy, "builds the index");
        atomic_store(&stage, 2);
        comm_wait(comm_all_reduce(s, data, scratch, 4, plain()), NULL);
        wait_for_stage(3);
        at = status_when(is_idle);
        CHECK_EQ_INT(at.member_count, 0);
        CHECK_EQ_INT(at.last.number, 2);
        atomic_store(&stage, 4);
        at = status_when(has_receive);
        CHECK_STR(at.oldest.stream, "");
        CHECK_EQ_INT(at.member_count, 2);
        CHECK_EQ_INT(at.members[0], 0);
        CHECK_EQ_INT(at.members[1], 2);
        CHECK_STR(at.busy, "");
        atomic_store(&stage, 5);
        wait_for_stage(6);
        status_when(is_idle);
        atomic_store(&stage, 7);
    } else {
        comm_wait(comm_all_reduce(s, data, scratch, 4, plain()), NULL);
        wait_for_stage(2);
        comm_wait(comm_all_reduce(s, data, scratch, 4, plain()), NULL);
        wait_for_stage(5);
        comm_wait(comm_send(rank->comm, 0, 9, data, 16), NULL);
    }
    ranks_check(rank);
    comm_stream_close(s);
}

TEST(comm_status_tells_what_is_in_flight) {
    ranks_run(3, &(struct comm_options){0}, status_body, NULL);
}

// Any thread may ask at any time, also while streams come and go and the world fails.
static void *ask_all_the_time(void *context) {
    static struct comm_journal_entry entries[COMM_JOURNAL_ENTRIES];
    struct comm *comm = context;
    struct comm_status s;
    int64_t stalls[2] = {0};
    while (atomic_load(&stage) == 0) {
        comm_status(comm, &s);
        int count = comm_journal(comm, entries, COMM_JOURNAL_ENTRIES);
        CHECK(count >= 0 && count <= COMM_JOURNAL_ENTRIES);
        comm_stalls(comm, 0.01, stalls);
        struct text text = {0};
        CHECK_EQ_INT(comm_journal_text(comm, &text), 0);
        text_free(&text);
        usleep(100); // the ranks want their locks too
    }
    return NULL;
}

static void busy_body(struct rank_case *rank) {
    pthread_t asker;
    float data[4] = {0}, scratch[4], out[4] = {0}, in[4];
    char mark[COMM_MARK_BYTES];
    if (rank->rank == 0) pthread_create(&asker, NULL, ask_all_the_time, rank->comm);
    for (int i = 0; i < 40; i++) {
        struct comm_stream *s = ranks_stream(rank, "dp");
        snprintf(mark, sizeof mark, "step %d", i);
        comm_mark(rank->comm, mark);
        for (int j = 0; j < 10; j++) {
            struct comm_event e[3];
            e[0] = comm_all_reduce(s, data, scratch, 4, plain());
            e[1] = comm_send(rank->comm, 1 - rank->rank, j, out, 16);
            e[2] = comm_receive(rank->comm, 1 - rank->rank, j, in, 16);
            for (int k = 0; k < 3; k++) comm_wait(e[k], NULL);
        }
        comm_stream_close(s);
    }
    ranks_check(rank);
    atomic_fetch_add(&checked, 1);
    while (atomic_load(&checked) < 2) usleep(1000); // nobody fails before both have looked
    struct err why = {0};
    err_set(&why, ERR_DATA, "the end");
    if (rank->rank == 1) comm_fail(rank->comm, &why);
    while (comm_check(rank->comm, NULL) == 0) usleep(1000);
    if (rank->rank != 0) return;
    atomic_store(&stage, 1);
    pthread_join(asker, NULL);
}

TEST(comm_status_from_any_thread) {
    ranks_run(2, &(struct comm_options){0}, busy_body, NULL);
}

// ---- the journal --------------------------------------------------------------------------------

static void journal_body(struct rank_case *rank) {
    static const int own[] = {0, 1};
    struct comm_journal_entry e[COMM_JOURNAL_ENTRIES];
    struct comm_stream *s = ranks_stream(rank, "dp");
    struct comm_stream *alone = comm_stream_open(rank->comm, "alone", &own[rank->rank], 1, NULL);
    unsigned char part[8] = {0}, all[16];
    float one = 1, none[1];
    CHECK_EQ_INT(comm_journal(rank->comm, e, COMM_JOURNAL_ENTRIES), 0);
    comm_mark(rank->comm, "step 1");
    comm_wait(comm_all_gather(s, part, all, 8), NULL);
    comm_wait(comm_all_reduce(alone, &one, none, 1, plain()), NULL); // is no message
    comm_mark(rank->comm, "a mark that is longer than the room which is there for it");
    struct comm_event in = comm_receive(rank->comm, 1 - rank->rank, 3, part, 8);
    CHECK_EQ_INT(comm_journal(rank->comm, e, COMM_JOURNAL_ENTRIES), 2);
    CHECK_STR(e[0].place.stream, "dp");
    CHECK_EQ_INT(e[0].place.kind, COMM_ALL_GATHER);
    CHECK_EQ_INT(e[0].place.number, 1);
    CHECK_EQ_INT(e[0].place.bytes, 8);
    CHECK_STR(e[0].mark, "step 1");
    CHECK(e[0].done && e[0].place.seconds >= 0);
    CHECK_CONTAINS(e[0].site, "status.c:");
    CHECK_STR(e[1].place.stream, "");
    CHECK_EQ_INT(e[1].place.kind, COMM_RECEIVE);
    CHECK_EQ_INT(strlen(e[1].mark), COMM_MARK_BYTES - 1);
    CHECK(!e[1].done);
    CHECK(strcmp(e[0].site, e[1].site) != 0);
    comm_wait(comm_barrier(s), NULL);
    comm_wait(comm_send(rank->comm, 1 - rank->rank, 3, all, 8), NULL);
    comm_wait(in, NULL);
    CHECK_EQ_INT(comm_journal(rank->comm, e, COMM_JOURNAL_ENTRIES), 4);
    for (int i = 0; i < 4; i++) CHECK(e[i].done);
    // only the latest are kept, and fewer are given when fewer are asked for
    for (int i = 0; i < COMM_JOURNAL_ENTRIES; i++) comm_wait(comm_barrier(s), NULL);
    CHECK_EQ_INT(comm_journal(rank->comm, e, COMM_JOURNAL_ENTRIES), COMM_JOURNAL_ENTRIES);
    CHECK_EQ_INT(e[0].place.number, 3);
    CHECK_EQ_INT(comm_journal(rank->comm, e, 2), 2);
    CHECK_EQ_INT(e[1].place.number, COMM_JOURNAL_ENTRIES + 2);
    // a stream that is closed has done everything
    comm_stream_close(s);
    CHECK_EQ_INT(comm_journal(rank->comm, e, 1), 1);
    CHECK(e[0].done);
    comm_stream_close(alone);
    ranks_check(rank);
}

TEST(comm_journal_of_posts) {
    ranks_run(2, &(struct comm_options){0}, journal_body, NULL);
}

// Rank 1 takes another branch at step 7 and leaves out its all-reduce: the message names it, with
// where it stands, and every rank leaves its journal.
static char journals[4200];
static void skip_body(struct rank_case *rank) {
    struct comm_stream *grad = ranks_stream(rank, "grad");
    float data[4] = {0}, scratch[12];
    struct err err = {0};
    char mark[COMM_MARK_BYTES];
    CHECK_OK(comm_keep_journal(rank->comm, journals, &err), err);
    for (int step = 1; step <= 7; step++) {
        snprintf(mark, sizeof mark, "step %d", step);
        comm_mark(rank->comm, mark);
        if (step == 7 && rank->rank == 1) break;
        comm_wait(comm_all_reduce(grad, data, scratch, 4, plain()), NULL);
    }
    while (comm_check(rank->comm, &err) == 0) usleep(1000);
    CHECK_CONTAINS(err.text, "step 7: all_reduce number 7 of stream grad (4 ranks, 16 bytes) at "
                             "status.c:");
    CHECK_CONTAINS(err.text, "rank 1 (");
    CHECK_CONTAINS(err.text, "has not posted it (it has posted 6; the last of all: all_reduce "
                             "number 6 of stream grad at status.c:");
    CHECK_CONTAINS(err.text, "in step 6)");
    CHECK_CONTAINS(err.text, journals);
    CHECK_EQ_INT(err.kind, ERR_IO);
    // The journal is written by the communication thread; it names the members of streams that are
    // open then.
    char path[4300];
    snprintf(path, sizeof path, "%s/rank-%05d.txt", journals, rank->rank);
    while (!file_exists(path)) usleep(1000);
    comm_stream_close(grad);
}

static char *journal_of(int rank) {
    struct err err = {0};
    char name[40], *text;
    size_t bytes;
    snprintf(name, sizeof name, "journals/rank-%05d.txt", rank);
    CHECK_OK(file_read(test_path(name), 0, &text, &bytes, &err), err);
    printf("%s", text);
    return text;
}

TEST(comm_journals_of_a_skipped_all_reduce) {
    snprintf(journals, sizeof journals, "%s/journals", test_temp_dir());
    ranks_run(4, &(struct comm_options){.watchdog_seconds = 0.8}, skip_body, NULL);
    for (int r = 0; r < 4; r++) {
        char *text = journal_of(r), head[32];
        snprintf(head, sizeof head, "rank %d (", r);
        CHECK(strncmp(text, head, strlen(head)) == 0);
        CHECK_CONTAINS(text, ") in step 7: ");
        CHECK_CONTAINS(text, "all_reduce number 6 of stream grad at status.c:");
        CHECK_CONTAINS(text, "in step 6, 16 bytes, posted ");
        CHECK_CONTAINS(text, "done, ranks 0 1 2 3\n");
        CHECK((strstr(text, "all_reduce number 7") != NULL) == (r != 1));
        CHECK((strstr(text, "NOT DONE") != NULL) == (r != 1));
        free(text);
    }
}

// What a rank found wrong beside the messages needs no journals, and a folder that cannot be made
// is no further failure.
static char gone[4200];
static void own_fault_body(struct rank_case *rank) {
    struct err why = {0}, err = {0};
    CHECK_OK(comm_keep_journal(rank->comm, gone, &err), err);
    err_set(&why, ERR_DATA, "train.bin ends early");
    if (rank->context || rank->rank == 1) {
        struct comm_stream *s = ranks_stream(rank, "dp");
        if (!rank->context) comm_fail(rank->comm, &why);
        if (rank->rank == 1) comm_wait(comm_barrier(s), NULL);
        while (comm_check(rank->comm, NULL) == 0) usleep(1000);
        comm_stream_close(s);
    }
    while (comm_check(rank->comm, NULL) == 0) usleep(1000);
}

static atomic_int warnings;
static void count_warnings(enum log_level level, const char *line, void *context) {
    (void)context;
    printf("%s\n", line);
    if (level == LOG_WARN && strstr(line, "journal of rank")) atomic_fetch_add(&warnings, 1);
}

TEST(comm_journals_only_where_messages_failed) {
    struct err err = {0};
    snprintf(gone, sizeof gone, "%s/a-file/below", test_temp_dir());
    CHECK_OK(file_replace(test_path("a-file"), "", 0, &err), err);
    log_to(count_warnings, NULL, LOG_DEBUG);
    ranks_run(2, &(struct comm_options){0}, own_fault_body, NULL);
    CHECK_EQ_INT(warnings, 0);
    ranks_run(2, &(struct comm_options){.watchdog_seconds = 0.3}, own_fault_body, &warnings);
    CHECK_EQ_INT(warnings, 2);
}

// ---- stalls -------------------------------------------------------------------------------------

static const double STALL_SECONDS = 0.2;
static int64_t seen[3][3]; // by rank, of its peers

static void exchange(struct rank_case *rank, struct comm_stream *s, double until) {
    int64_t over;
    do {
        over = clock_seconds() > until;
        comm_max_integers(s, &over, 1);
    } while (!over);
    comm_stalls(rank->comm, STALL_SECONDS, seen[rank->rank]);
}

static void flap_body(struct rank_case *rank) {
    struct comm_stream *s = ranks_stream(rank, "dp");
    memset(seen[rank->rank], 0, sizeof seen[0]);
    comm_stalls(rank->comm, STALL_SECONDS, seen[rank->rank]);
    comm_wait(comm_barrier(s), NULL);
    // messages from rank 1 to rank 2 stand still for 0.4 s of every 1.6 s
    struct comm_fault flap = {.peer = 2, .flap_seconds = 0.4};
    if (rank->rank == 1 && rank->context) comm_inject(rank->comm, &flap);
    exchange(rank, s, clock_seconds() + (rank->context ? 3.3 : 0.5));
    ranks_check(rank);
    comm_stream_close(s);
}

TEST(comm_stalls_of_a_link) {
    ranks_run(3, &(struct comm_options){0}, flap_body, seen);
    CHECK(seen[2][1] >= 2);
#ifndef WEFT_SANITIZED // where threads are slow for other reasons
    CHECK(seen[0][1] + seen[0][2] + seen[2][0] < seen[2][1]); // the others' links are well
#endif
    ranks_run(3, &(struct comm_options){0}, flap_body, NULL);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) CHECK_EQ_INT(seen[i][j], 0);
}

// A rank that is late is no stalled link.
static void late_body(struct rank_case *rank) {
    struct comm_stream *s = ranks_stream(rank, "dp");
    memset(seen[rank->rank], 0, sizeof seen[0]);
    comm_stalls(rank->comm, 1.2, seen[rank->rank]);
    if (rank->rank == 1) usleep(1500000);
    comm_wait(comm_barrier(s), NULL);
    comm_stalls(rank->comm, 1.2, seen[rank->rank]);
    ranks_check(rank);
    comm_stream_close(s);
}

TEST(comm_stalls_are_not_of_late_ranks) {
    ranks_run(3, &(struct comm_options){0}, late_body, NULL);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) CHECK_EQ_INT(seen[i][j], 0);
}
