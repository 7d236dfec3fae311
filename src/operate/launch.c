// See launch.h.
#include "operate/launch.h"
#include "base/text.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_WORD_BYTES = 128 << 10 }; // what Linux takes as one argument

int launch_mpi_of(const char *library, enum launch_mpi *out, struct err *err) {
    if (strncmp(library, "Open MPI", 8) == 0)
        *out = LAUNCH_OPEN_MPI;
    else if (strcmp(library, "none") != 0)
        *out = LAUNCH_MPICH; // Intel MPI and MVAPICH start ranks with the same Hydra
    else
        return err_set(err, ERR_USAGE,
                       "more than one rank needs MPI, and this program was built without; build it "
                       "with -DWEFT_MPI=openmpi or -DWEFT_MPI=mpich");
    return 0;
}

const char *const *launch_starters(enum launch_mpi mpi) {
    // Names with the flavour first: plain mpirun may belong to another MPI.
    static const char *const open_mpi[] = {"mpirun.openmpi", "mpirun", NULL};
    static const char *const mpich[] = {"mpiexec.hydra", "mpirun.mpich", "mpiexec", NULL};
    return mpi == LAUNCH_OPEN_MPI ? open_mpi : mpich;
}

int launch_add(struct launch_command *c, const char *word) {
    char **words = realloc(c->words, sizeof *words * (size_t)(c->count + 2));
    if (words) c->words = words;
    char *copy = words ? strdup(word) : NULL;
    if (!copy) return -1;
    words[c->count++] = copy;
    words[c->count] = NULL;
    return 0;
}

static int add_all(struct launch_command *c, const char *const *words) {
    int failed = 0;
    for (; *words && !failed; words++) failed = launch_add(c, *words);
    return failed;
}

static int add_number(struct launch_command *c, int number) {
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    return launch_add(c, text);
}

// "a:4,b:4": both MPIs read it.
static int add_hosts(struct launch_command *c, const struct hosts *hosts, struct err *err) {
    struct text list = {0};
    int failed = 0;
    for (int i = 0; i < hosts->count && !failed; i++)
        failed =
            text_printf(&list, "%s%s:%d", i ? "," : "", hosts->list[i].name, hosts->list[i].slots);
    if (!failed && list.size >= MOST_WORD_BYTES)
        err_set(err, ERR_USAGE,
                "the list of %d hosts has %zu bytes, at most %d fit in a command line; name the "
                "hosts by shorter names, or start mpirun with a file of its own",
                hosts->count, list.size, (int)MOST_WORD_BYTES - 1);
    else if (!failed)
        failed = launch_add(c, list.data);
    bool too_long = list.size >= MOST_WORD_BYTES;
    text_free(&list);
    return failed || too_long ? -1 : 0;
}

static int add_threads(struct launch_command *c, const struct launch_request *r) {
    char text[48];
    if (r->threads <= 0) return 0;
    snprintf(text, sizeof text, "OMP_NUM_THREADS=%d", r->threads);
    if (r->mpi == LAUNCH_OPEN_MPI) return launch_add(c, "-x") | launch_add(c, text);
    return launch_add(c, "-genv") | launch_add(c, "OMP_NUM_THREADS") | add_number(c, r->threads);
}

static int make_open_mpi(struct launch_command *c, const struct launch_request *r,
                         struct err *err) {
    static const char *const usual[] = {"--map-by", "slot:OVERSUBSCRIBE",  "--bind-to", "none",
                                        "--mca",    "mpi_yield_when_idle", "1",         NULL};
    int failed = launch_add(c, r->starter);
    if (r->is_root) failed |= launch_add(c, "--allow-run-as-root");
    failed |= launch_add(c, "-n") | add_number(c, r->ranks) | add_all(c, usual);
    if (!failed && r->hosts) failed = launch_add(c, "--host") | add_hosts(c, r->hosts, err);
    for (int i = 0; i < r->exported_count && !failed; i++)
        failed = launch_add(c, "-x") | launch_add(c, r->exported[i]);
    return failed | add_threads(c, r);
}

// Its ranks inherit the whole environment, root needs no word, more ranks than slots neither.
static int make_mpich(struct launch_command *c, const struct launch_request *r, struct err *err) {
    int failed = launch_add(c, r->starter) | launch_add(c, "-bind-to") | launch_add(c, "none");
    if (!failed && r->hosts) failed = launch_add(c, "-hosts") | add_hosts(c, r->hosts, err);
    return failed | add_threads(c, r) | launch_add(c, "-n") | add_number(c, r->ranks);
}

int launch_command_make(struct launch_command *command, const struct launch_request *r,
                        struct err *err) {
    struct launch_command c = {0};
    int failed = r->mpi == LAUNCH_OPEN_MPI ? make_open_mpi(&c, r, err) : make_mpich(&c, r, err);
    failed |= launch_add(&c, r->program) | launch_add(&c, "launch") | launch_add(&c, LAUNCH_KEEP);
    for (int i = 0; i < r->word_count && !failed; i++) failed = launch_add(&c, r->words[i]);
    if (failed) {
        launch_command_free(&c);
        return err_set(err, ERR_MEMORY, "no memory for the command line of mpirun");
    }
    *command = c;
    return 0;
}

void launch_command_free(struct launch_command *command) {
    for (int i = 0; i < command->count; i++) free(command->words[i]);
    free(command->words);
    *command = (struct launch_command){0};
}
