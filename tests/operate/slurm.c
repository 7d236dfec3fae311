// What Slurm says of an allocation, and the script that asks for one.
#include "operate/slurm.h"
#include "base/file.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char joined[65536];

// The hosts of a list as "name:slots name:slots".
static const char *names_of(const struct hosts *hosts) {
    joined[0] = 0;
    for (int i = 0; i < hosts->count; i++) {
        size_t used = strlen(joined);
        snprintf(joined + used, sizeof joined - used, "%s%s:%d", i ? " " : "", hosts->list[i].name,
                 hosts->list[i].slots);
    }
    return joined;
}

static const char *expand(const char *list) {
    static struct hosts hosts;
    struct err err = {0};
    hosts_free(&hosts);
    CHECK_OK(slurm_expand(&hosts, list, &err), err);
    CHECK_EQ_INT(hosts.slots, hosts.count);
    return names_of(&hosts);
}

TEST(slurm_expands_node_lists) {
    CHECK_STR(expand("n1"), "n1:1");
    CHECK_STR(expand("n[01-03,7],gpu-2"), "n01:1 n02:1 n03:1 n7:1 gpu-2:1");
    CHECK_STR(expand("n[8-11]"), "n8:1 n9:1 n10:1 n11:1");
    CHECK_STR(expand("n[098-101]"), "n098:1 n099:1 n100:1 n101:1");
    CHECK_STR(expand("a,b[1],c-[2-3]-x.site"), "a:1 b1:1 c-2-x.site:1 c-3-x.site:1");
    CHECK_STR(expand("rack[1-2]n[1,3]"), "rack1n1:1 rack1n3:1 rack2n1:1 rack2n3:1");
    CHECK_STR(expand("n[000000000-000000001]"), "n000000000:1 n000000001:1");
}

TEST(slurm_refuses_bad_node_lists) {
    static const char *const bad[][2] = {
        {"", "empty"},
        {"a,,b", "empty"},
        {"a,", "empty"},
        {"n[1-", "not closed"},
        {"n[1", "not closed"},
        {"n]1", "not opened"},
        {"n[]", "is empty"},
        {"n[1,]", "missing"},
        {"n[,1]", "missing"},
        {"n[1-]", "missing"},
        {"n[3-1]", "backwards"},
        {"n[a-b]", "missing"},
        {"n[1;2]", "more than numbers"},
        {"n[1-99999999]", "65536"},
        {"n[1-60000],m[1-60000]", "65536"},
        {"n[0-9999999999]", "9 digits"},
        {"a b", "space"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct hosts hosts = {0};
        struct err err = {0};
        if (slurm_expand(&hosts, bad[i][0], &err) == 0)
            test_fail(__FILE__, __LINE__, "\"%s\" was taken", bad[i][0]);
        CHECK_EQ_INT(err.kind, ERR_USAGE);
        CHECK_CONTAINS(err.text, bad[i][1]);
        hosts_free(&hosts);
    }
    char longest[600];
    struct hosts hosts = {0};
    struct err err = {0};
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = 0;
    CHECK_EQ_INT(slurm_expand(&hosts, longest, &err), -1);
    CHECK_CONTAINS(err.text, "too long");
}

TEST(slurm_counts_tasks) {
    static const char *const bad[] = {
        "2(x3)", "2(x5)", "2",     "",       "2(x4),", "2(x4),1", "2(x-1)", "x",
        "2(x4",  "2(y4)", "0(x4)", "-2(x4)", "2,2,2",  "2 2",     "1,,1,1", "99999999999(x4)"};
    struct hosts hosts = {0};
    struct err err = {0};
    CHECK_OK(slurm_expand(&hosts, "n[1-4]", &err), err);
    CHECK_OK(slurm_counts(&hosts, "2(x3),1", &err), err);
    CHECK_STR(names_of(&hosts), "n1:2 n2:2 n3:2 n4:1");
    CHECK_EQ_INT(hosts.slots, 7);
    CHECK_OK(slurm_counts(&hosts, "3,1(x2),4", &err), err);
    CHECK_STR(names_of(&hosts), "n1:3 n2:1 n3:1 n4:4");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err = (struct err){0};
        if (slurm_counts(&hosts, bad[i], &err) == 0)
            test_fail(__FILE__, __LINE__, "\"%s\" was taken", bad[i]);
        CHECK_EQ_INT(err.kind, ERR_USAGE);
    }
    hosts_free(&hosts);
}

// "NAME=VALUE" words, ended by NULL.
static const char *lookup(const char *name, void *context) {
    size_t length = strlen(name);
    for (const char *const *at = context; *at; at++)
        if (strncmp(*at, name, length) == 0 && (*at)[length] == '=') return *at + length + 1;
    return NULL;
}

TEST(slurm_reads_an_allocation) {
    const char *words[] = {
        "SLURM_JOB_ID=71",       "SLURM_JOB_NODELIST=n[1-3],m1",  "SLURM_TASKS_PER_NODE=2(x3),4",
        "SLURM_RESTART_COUNT=3", "SLURM_JOB_END_TIME=1780000000", NULL};
    struct err err = {0};
    struct slurm_job job;
    CHECK_OK(slurm_read(&job, lookup, words, &err), err);
    CHECK(job.inside);
    CHECK_STR(job.id, "71");
    CHECK_STR(names_of(&job.hosts), "n1:2 n2:2 n3:2 m1:4");
    CHECK_EQ_INT(job.restarts, 3);
    CHECK_CLOSE(job.end_time, 1.78e9, 0);
    CHECK_EQ_INT(slurm_spares(&job.hosts, 10), 0);
    CHECK_EQ_INT(slurm_spares(&job.hosts, 6), 1);
    CHECK_EQ_INT(slurm_spares(&job.hosts, 5), 1);
    CHECK_EQ_INT(slurm_spares(&job.hosts, 2), 3);
    CHECK_EQ_INT(slurm_spares(&job.hosts, 99), 0);
    slurm_free(&job);

    words[0] = "SLURM_JOB_ID=";
    CHECK_OK(slurm_read(&job, lookup, words, &err), err);
    CHECK(!job.inside && job.hosts.count == 0);
    words[0] = "SLURM_JOB_ID=71";
    words[2] = "X=1"; // one task a node
    CHECK_OK(slurm_read(&job, lookup, words, &err), err);
    CHECK_STR(names_of(&job.hosts), "n1:1 n2:1 n3:1 m1:1");
    slurm_free(&job);
    words[2] = "SLURM_TASKS_PER_NODE=2(x3)";
    CHECK_EQ_INT(slurm_read(&job, lookup, words, &err), -1);
    CHECK_CONTAINS(err.text, "SLURM_TASKS_PER_NODE");
    err = (struct err){0};
    words[1] = "Y=1";
    CHECK_EQ_INT(slurm_read(&job, lookup, words, &err), -1);
    CHECK_CONTAINS(err.text, "SLURM_JOB_NODELIST is missing");
    err = (struct err){0};
    words[1] = "SLURM_JOB_NODELIST=n[1-4]";
    words[2] = "X=1";
    words[3] = "SLURM_RESTART_COUNT=many";
    CHECK_EQ_INT(slurm_read(&job, lookup, words, &err), -1);
    CHECK_CONTAINS(err.text, "SLURM_RESTART_COUNT");
}

// ---- the script, run by a shell with programs of the test in place of weft and scontrol

static const char *emit(void) {
    static char weft[4300], folder[4300];
    char *words[] = {"train", "a b.yaml", "run.name='x'", NULL};
    struct slurm_script s = {.name = "gpt",
                             .ranks = 7,
                             .ranks_per_node = 2,
                             .spares = 1,
                             .cores_per_rank = 3,
                             .time_limit = "2-00:00:00",
                             .grace_seconds = 120,
                             .program = weft,
                             .run_folder = folder,
                             .words = words};
    static struct text text;
    struct err err = {0};
    snprintf(weft, sizeof weft, "%s", test_path("weft"));
    snprintf(folder, sizeof folder, "%s", test_path("run"));
    text.size = 0;
    CHECK_OK(slurm_emit(&s, &text, &err), err);
    CHECK_OK(file_replace(test_path("job.sh"), text.data, text.size, &err), err);
    return text.data;
}

TEST(slurm_script_asks_for_what_a_run_needs) {
    const char *text = emit();
    static const char *const lines[] = {"\n#SBATCH --nodes=5\n",
                                        "\n#SBATCH --ntasks-per-node=2\n",
                                        "\n#SBATCH --cpus-per-task=3\n",
                                        "\n#SBATCH --time=2-00:00:00\n",
                                        "\n#SBATCH --requeue\n",
                                        "\n#SBATCH --no-kill\n",
                                        "\n#SBATCH --signal=B:USR1@120\n",
                                        "\n#SBATCH --switches=1@",
                                        " launch -n 7 --spares 1 train 'a b.yaml' "
                                        "'run.name='\\''x'\\''' &\n"};
    CHECK(strncmp(text, "#!/bin/bash\n", 12) == 0);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) CHECK_CONTAINS(text, lines[i]);
    struct slurm_script none = {.name = "x", .ranks = 4};
    struct text out = {0};
    struct err err = {0};
    CHECK_EQ_INT(slurm_emit(&none, &out, &err), -1);
    text_free(&out);
}

// A weft that leaves with STATUS, or with 75 at a signal; a scontrol that tells what it is asked,
// and shows a job whose ExcNodeList stands in the file "away".
static int run_script(const char *weft, const char *before, char *out, size_t bytes) {
    struct err err = {0};
    static const char scontrol[] =
        "#!/bin/sh\n"
        "[ \"$*\" != '-o show job 71' ] || exec echo \"JobId=71 JobName=gpt Comment=ExcNodeList "
        "ReqNodeList=(null) ExcNodeList=$(cat away) Command=/a b/c\"\n"
        "echo \"scontrol $*\"\n";
    emit();
    CHECK_OK(file_replace(test_path("weft"), weft, strlen(weft), &err), err);
    CHECK_OK(file_replace(test_path("scontrol"), scontrol, strlen(scontrol), &err), err);
    return test_shell(out, bytes,
                      "cd %s && chmod +x weft scontrol && %s PATH=$PWD:$PATH SLURM_JOB_ID=71 bash "
                      "job.sh 2>&1",
                      test_temp_dir(), before);
}

TEST(slurm_script_follows_the_status) {
    char out[4096];
    CHECK_EQ_INT(run_script("#!/bin/sh\necho \"$*\"\n", "", out, sizeof out), 0);
    CHECK_STR(out, "launch -n 7 --spares 1 train a b.yaml run.name='x'\n");
    CHECK_EQ_INT(run_script("#!/bin/sh\nexit 3\n", "", out, sizeof out), 3);
    CHECK_STR(out, "");
    CHECK_EQ_INT(run_script("#!/bin/sh\nexit 75\n", "", out, sizeof out), 75);
    CHECK_STR(out, "scontrol requeue 71\n");
}

// The nodes that an earlier requeue or the user has kept away stay away.
TEST(slurm_script_adds_to_the_nodes_that_are_kept_away) {
    static const char *const cases[][2] = {
        {"(null)", "n1,n3"}, {"", "n1,n3"}, {"n5", "n5,n1,n3"}, {"n[5-7],m2", "n[5-7],m2,n1,n3"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char out[4096], before[256], wanted[256];
        snprintf(before, sizeof before,
                 "mkdir -p run/launch && printf 'n3\\nn1\\nn3\\n' >run/launch/evicted && echo "
                 "'%s' >away &&",
                 cases[i][0]);
        CHECK_EQ_INT(run_script("#!/bin/sh\nexit 76\n", before, out, sizeof out), 76);
        snprintf(wanted, sizeof wanted,
                 "scontrol requeuehold 71\nscontrol update JobId=71 ExcNodeList=%s\n"
                 "scontrol release 71\n",
                 cases[i][1]);
        CHECK_STR(out, wanted);
    }
}

TEST(slurm_script_hands_signals_on) {
    char out[4096];
    // the script's process is the parent of weft; a second signal while it waits is handed on too
    CHECK_EQ_INT(run_script("#!/bin/sh\ntrap 'echo asked; sleep 0.3; exit 75' USR1\n"
                            "sleep 0.3; kill -USR1 $PPID\nwhile :; do sleep 0.1; done\n",
                            "", out, sizeof out),
                 75);
    CHECK_STR(out, "asked\nscontrol requeue 71\n");
}
