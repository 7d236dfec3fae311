// From the options of weft launch to a command line of mpirun (operate/launch.h).
#include "base/affinity.h"
#include "base/text.h"
#include "cli/launch.h"
#include "comm/comm.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_EXPORTED = 64 };

int launch_program(char path[PATH_MAX], struct err *err) {
    ssize_t size = readlink("/proc/self/exe", path, PATH_MAX - 1);
    if (size < 0) return err_set_errno(err, "/proc/self/exe");
    path[size] = 0;
    return 0;
}

// The first of the names in a folder of PATH.
int launch_find_starter(char path[PATH_MAX], struct err *err) {
    enum launch_mpi mpi;
    if (launch_mpi_of(comm_library(), &mpi, err) != 0) return -1;
    const char *const *names = launch_starters(mpi);
    const char *folders = getenv("PATH");
    for (const char *const *name = names; *name; name++)
        for (const char *at = folders ? folders : "/usr/local/bin:/usr/bin:/bin"; *at;) {
            size_t length = strcspn(at, ":");
            snprintf(path, PATH_MAX, "%.*s/%s", (int)length, at, *name);
            if (length > 0 && access(path, X_OK) == 0) return 0;
            at += length + (at[length] == ':');
        }
    return err_set(err, ERR_USAGE,
                   "launch: neither %s nor %s is in PATH, and this program needs one of them (%s)",
                   names[0], names[1], comm_library());
}

// Variables that a rank on another host needs and that mpirun would not carry there.
static int find_exported(const char *const *own, const char **names) {
    static const char *const prefixes[] = {"OMP_",  "GOMP_",           "WEFT_",
                                           "DNNL_", "LD_LIBRARY_PATH", "ONEDNN_"};
    static char found[MOST_EXPORTED][128];
    int count = 0;
    for (; own && *own && count < MOST_EXPORTED; own++) names[count++] = *own;
    for (char **at = environ; *at && count < MOST_EXPORTED; at++) {
        size_t length = strcspn(*at, "=");
        for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
            if (length < sizeof found[0] && strncmp(*at, prefixes[i], strlen(prefixes[i])) == 0) {
                snprintf(found[count], sizeof found[0], "%.*s", (int)length, *at);
                names[count] = found[count];
                count++;
                break;
            }
    }
    return count;
}

static bool says_threads(char *const *words) {
    const char *variable = getenv("OMP_NUM_THREADS");
    if (variable && variable[0]) return true;
    for (; *words; words++)
        if (strncmp(*words, "device.threads=", 15) == 0 || strcmp(*words, "--threads") == 0)
            return true;
    return false;
}

// Where all ranks stand on this host their share of its cores is known here; on others each rank
// finds its own.
static int threads_of_a_rank(const struct hosts *hosts, int ranks, char *const *words) {
    const char *job = getenv("SLURM_JOB_ID");
    if (hosts || (job && job[0]) || says_threads(words)) return 0;
    int share = affinity_cpus() / ranks;
    return share > 0 ? share : 1;
}

int launch_words(int ranks, const struct hosts *hosts, const char *program, char *const *words,
                 const char *const *own, struct launch_command *out, struct err *err) {
    char starter[PATH_MAX];
    const char *exported[MOST_EXPORTED];
    int count = 0;
    while (words[count]) count++;
    struct launch_request request = {.starter = starter,
                                     .program = program,
                                     .ranks = ranks,
                                     .hosts = hosts,
                                     .is_root = geteuid() == 0,
                                     .threads = threads_of_a_rank(hosts, ranks, words),
                                     .exported = exported,
                                     .words = words,
                                     .word_count = count};
    if (launch_mpi_of(comm_library(), &request.mpi, err) != 0 ||
        launch_find_starter(starter, err) != 0)
        return -1;
    request.exported_count = find_exported(own, exported);
    return launch_command_make(out, &request, err);
}

void launch_print(char *const *words) {
    struct text line = {0};
    int failed = 0;
    for (int i = 0; words[i]; i++)
        failed |= text_puts(&line, i > 0 ? " " : "") | text_put_word(&line, words[i]);
    if (!failed) puts(line.data ? line.data : "");
    text_free(&line);
}
