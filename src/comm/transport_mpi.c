// Ranks that are processes, over MPI. Only the communication thread calls it: MPI_THREAD_FUNNELED
// with that thread as the one that has initialised. Nothing here waits inside MPI but opening and
// closing; a wait of Open MPI spins, and on a machine whose cores are all computing that halves
// the rate of matrix products.
#include "comm/comm.h"
#include "comm/transport.h"
#include <stdio.h>
#ifdef WEFT_HAVE_MPI
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NOTES_SPARE = 64 }; // notes under way beyond one to each rank; one more is dropped

struct mpi_end {
    struct transport base;
    struct doorbell bell;
    MPI_Win link_window; // shared memory of the simulated link
    bool has_window;
    MPI_Request leaving;
    bool leaves;
    MPI_Request note_in, *notes_out;
    struct transport_note in, *out;
    int note_room;
};

static struct mpi_end *end_of(struct transport *t) {
    return (struct mpi_end *)t;
}

// A request of MPI is a pointer in Open MPI and a number in MPICH; both fit the handle.
_Static_assert(sizeof(MPI_Request) <= sizeof(((struct transport_request *)0)->handle),
               "a request of this MPI does not fit");

static MPI_Request load_request(const struct transport_request *r) {
    MPI_Request request;
    memcpy(&request, &r->handle, sizeof request);
    return request;
}

static void store_request(struct transport_request *r, MPI_Request request) {
    memcpy(&r->handle, &request, sizeof request);
}

static int mpi_error(int code, const char *what, int peer, struct err *err) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    return err_set(err, ERR_IO, "MPI could not %s rank %d: %.300s", what, peer, text);
}

// ---- messages -----------------------------------------------------------------------------------

// An error shows at the test; `copied_bytes` keeps the code until then.
static void mpi_send(struct transport *t, struct transport_request *r) {
    (void)t;
    MPI_Request request = MPI_REQUEST_NULL;
    r->sends = true;
    r->copied_bytes = (uint64_t)MPI_Isend(r->data, (int)r->bytes, MPI_BYTE, r->peer, r->tag,
                                          MPI_COMM_WORLD, &request);
    store_request(r, request);
}

static void mpi_receive(struct transport *t, struct transport_request *r) {
    (void)t;
    MPI_Request request = MPI_REQUEST_NULL;
    r->sends = false;
    r->copied_bytes = (uint64_t)MPI_Irecv(r->data, (int)r->bytes, MPI_BYTE, r->peer, r->tag,
                                          MPI_COMM_WORLD, &request);
    store_request(r, request);
}

static int mpi_test(struct transport *t, struct transport_request *r, struct err *err) {
    (void)t;
    MPI_Request request = load_request(r);
    MPI_Status status;
    int code = (int)r->copied_bytes, done = 0, found = 0;
    if (code == MPI_SUCCESS) code = MPI_Test(&request, &done, &status);
    store_request(r, request);
    if (code != MPI_SUCCESS)
        return mpi_error(code, r->sends ? "send to" : "receive from", r->peer, err);
    if (!done) return 0;
    if (r->sends) return 1;
    MPI_Get_count(&status, MPI_BYTE, &found);
    if ((uint64_t)found != r->bytes)
        return err_set(err, ERR_INTERNAL,
                       "message with tag %d from rank %d: expected %llu bytes, found %d", r->tag,
                       r->peer, (unsigned long long)r->bytes, found);
    return 1;
}

// ---- notes --------------------------------------------------------------------------------------

static void mpi_note_send(struct transport *t, int peer, const struct transport_note *note) {
    struct mpi_end *end = end_of(t);
    for (int i = 0; i < end->note_room; i++) {
        int done = 1;
        if (end->notes_out[i] != MPI_REQUEST_NULL)
            MPI_Test(&end->notes_out[i], &done, MPI_STATUS_IGNORE);
        if (!done) continue;
        end->out[i] = *note;
        MPI_Isend(&end->out[i], (int)sizeof *note, MPI_BYTE, peer, TRANSPORT_NOTE_TAG,
                  MPI_COMM_WORLD, &end->notes_out[i]);
        return;
    }
}

static int open_notes(struct mpi_end *end, struct err *err) {
    end->note_room = end->base.size + NOTES_SPARE;
    end->notes_out = calloc((size_t)end->note_room, sizeof *end->notes_out);
    end->out = calloc((size_t)end->note_room, sizeof *end->out);
    if (!end->notes_out || !end->out)
        return err_set(err, ERR_MEMORY, "no memory for notes to %d ranks", end->base.size);
    for (int i = 0; i < end->note_room; i++) end->notes_out[i] = MPI_REQUEST_NULL;
    return 0;
}

static void expect_note(struct mpi_end *end) {
    if (MPI_Irecv(&end->in, (int)sizeof end->in, MPI_BYTE, MPI_ANY_SOURCE, TRANSPORT_NOTE_TAG,
                  MPI_COMM_WORLD, &end->note_in) != MPI_SUCCESS)
        end->note_in = MPI_REQUEST_NULL;
}

static bool mpi_note_receive(struct transport *t, struct transport_note *note) {
    struct mpi_end *end = end_of(t);
    int done = 0;
    if (end->note_in == MPI_REQUEST_NULL ||
        MPI_Test(&end->note_in, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || !done)
        return false;
    *note = end->in;
    expect_note(end);
    return true;
}

// ---- opening ------------------------------------------------------------------------------------

static int check_world(const struct comm_options *options, int size, struct err *err) {
    if (options->expected_ranks > 1 && size == 1)
        return err_set(err, ERR_USAGE,
                       "the launcher started %d ranks, but this one finds itself in a world of 1: "
                       "the launcher does not speak to this program's MPI (%s). Start it with "
                       "that MPI's mpirun, or with srun --mpi=pmix (or --mpi=pmi2)",
                       options->expected_ranks, transport_mpi_library());
    void *value = NULL;
    int known = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &value, &known);
    if (!known || *(int *)value < TRANSPORT_TAG_LIMIT - 1)
        return err_set(err, ERR_IO,
                       "this MPI (%s) allows message tags up to %d, expected at least %d: choose "
                       "another transport of it (e.g. FI_PROVIDER=tcp)",
                       transport_mpi_library(), known ? *(int *)value : 0, TRANSPORT_TAG_LIMIT - 1);
    return 0;
}

static int gather_hosts(struct transport *t, const struct comm_options *options, struct err *err) {
    char own[MPI_MAX_PROCESSOR_NAME + TRANSPORT_HOST_BYTES] = "";
    int length = 0;
    t->hosts = calloc((size_t)t->size, sizeof *t->hosts);
    if (!t->hosts) return err_set(err, ERR_MEMORY, "no memory for %d host names", t->size);
    if (options->ranks_per_host > 0)
        snprintf(own, sizeof own, "host-%d", t->rank / options->ranks_per_host);
    else
        MPI_Get_processor_name(own, &length);
    own[TRANSPORT_HOST_BYTES - 1] = 0;
    int code = MPI_Allgather(own, TRANSPORT_HOST_BYTES, MPI_BYTE, t->hosts, TRANSPORT_HOST_BYTES,
                             MPI_BYTE, MPI_COMM_WORLD);
    return code == MPI_SUCCESS ? 0 : mpi_error(code, "gather the host names at", t->rank, err);
}

// The table of a simulated link in memory that all processes of this machine share.
static int share_links(struct mpi_end *end, const struct comm_options *options, struct err *err) {
    if (options->ranks_per_host <= 0) return 0;
    int size = end->base.size;
    MPI_Comm machine;
    int code =
        MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
    int first = 0, unit = 0;
    void *table = NULL;
    MPI_Aint bytes = 0;
    if (code == MPI_SUCCESS) MPI_Comm_rank(machine, &first);
    if (code == MPI_SUCCESS && first == 0)
        bytes = (MPI_Aint)size * size * (MPI_Aint)sizeof(int64_t);
    if (code == MPI_SUCCESS)
        code = MPI_Win_allocate_shared(bytes, sizeof(int64_t), MPI_INFO_NULL, machine, &table,
                                       &end->link_window);
    if (code != MPI_SUCCESS)
        return mpi_error(code, "share memory for the simulated link at", end->base.rank, err);
    end->has_window = true;
    if (first == 0) memset(table, 0, (size_t)bytes);
    MPI_Win_shared_query(end->link_window, 0, &bytes, &unit, &table);
    end->base.link_free_ns = table;
    MPI_Barrier(machine);
    MPI_Comm_free(&machine);
    return 0;
}

// ---- closing ------------------------------------------------------------------------------------

static void mpi_withdraw(struct transport *t) {
    (void)t; // cannot be promised: the process has to end
}

static bool mpi_leave(struct transport *t) {
    struct mpi_end *end = end_of(t);
    int done = 0;
    if (!end->leaves && MPI_Ibarrier(MPI_COMM_WORLD, &end->leaving) != MPI_SUCCESS) return false;
    end->leaves = true;
    return MPI_Test(&end->leaving, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done;
}

static void end_free(struct mpi_end *end) {
    doorbell_close(&end->bell);
    free(end->base.hosts);
    free(end->notes_out);
    free(end->out);
    free(end);
}

static void mpi_close(struct transport *t, bool failed) {
    struct mpi_end *end = end_of(t);
    if (failed) return; // messages may still be under way: its memory stays
    if (end->note_in != MPI_REQUEST_NULL) {
        MPI_Cancel(&end->note_in);
        MPI_Wait(&end->note_in, MPI_STATUS_IGNORE);
    }
    for (int i = 0; i < end->note_room; i++) MPI_Wait(&end->notes_out[i], MPI_STATUS_IGNORE);
    if (end->has_window) MPI_Win_free(&end->link_window);
    MPI_Finalize();
    end_free(end);
}

static const struct transport_calls mpi_calls = {
    .send = mpi_send,
    .receive = mpi_receive,
    .test = mpi_test,
    .note_send = mpi_note_send,
    .note_receive = mpi_note_receive,
    .withdraw = mpi_withdraw,
    .leave = mpi_leave,
    .close = mpi_close,
};

int transport_open_mpi(struct transport **out, const struct comm_options *options,
                       struct err *err) {
    int provided = 0, begun = 0;
    MPI_Initialized(&begun);
    if (begun) return err_set(err, ERR_INTERNAL, "MPI can be opened once in the life of a process");
    struct mpi_end *end = calloc(1, sizeof *end);
    if (!end) return err_set(err, ERR_MEMORY, "no memory for the state of MPI");
    int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
    if (code != MPI_SUCCESS || provided < MPI_THREAD_FUNNELED) {
        free(end);
        return err_set(err, ERR_IO, "MPI (%s) does not start with calls from one thread of several",
                       transport_mpi_library());
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    struct transport *t = &end->base;
    t->calls = &mpi_calls;
    t->polled = true;
    t->bell = &end->bell;
    doorbell_open(&end->bell);
    MPI_Comm_rank(MPI_COMM_WORLD, &t->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &t->size);
    if (check_world(options, t->size, err) != 0 || open_notes(end, err) != 0 ||
        gather_hosts(t, options, err) != 0 || share_links(end, options, err) != 0) {
        if (t->size == 1) MPI_Finalize(); // else the others may be at another place
        end_free(end);
        return -1;
    }
    expect_note(end);
    *out = t;
    return 0;
}

bool transport_mpi_built(void) {
    return true;
}

// "Open MPI v4.1.4" or "MPICH Version: 4.0.2" from the library's long description.
const char *transport_mpi_library(void) {
    static char text[64];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    char whole[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    pthread_mutex_lock(&lock);
    if (!text[0]) {
        MPI_Get_library_version(whole, &length);
        whole[strcspn(whole, ",\n")] = 0;
        char *version = strstr(whole, "Version:");
        if (version) // "MPICH Version:      4.0.2"
            snprintf(text, sizeof text, "MPICH %.40s", version + 8 + strspn(version + 8, " \t"));
        else // "Open MPI v4.1.4"
            snprintf(text, sizeof text, "%.60s", whole);
        char *v = strstr(text, " v");
        if (v) memmove(v + 1, v + 2, strlen(v + 2) + 1);
    }
    pthread_mutex_unlock(&lock);
    return text;
}

void transport_mpi_abort(int status) {
    MPI_Abort(MPI_COMM_WORLD, status);
    _exit(status); // MPICH only asks its launcher, and goes on in a process that this does not know
}

#else

bool transport_mpi_built(void) {
    return false;
}

const char *transport_mpi_library(void) {
    return "none";
}

void transport_mpi_abort(int status) {
    (void)status;
}

int transport_open_mpi(struct transport **out, const struct comm_options *options,
                       struct err *err) {
    (void)out;
    char wanted[64] = "";
    if (options->expected_ranks > 1)
        snprintf(wanted, sizeof wanted, "the launcher started %d ranks; ", options->expected_ranks);
    return err_set(err, ERR_USAGE,
                   "%sthis weft was built without MPI and runs as one process: install "
                   "libopenmpi-dev or libmpich-dev and build it anew (-DWEFT_MPI=openmpi or mpich)",
                   wanted);
}
#endif
