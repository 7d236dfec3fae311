// Runs over hosts that are namespaces of this machine, see tests/cluster/cluster.
#include "base/file.h"
#include "comm/comm.h"
#include "operate/launch.h"
#include "rank.h"
#include "test.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

// The cluster's name, and the folder of the programs where /tmp would hide it; the process that
// owns the cluster is to be put behind.
static const char *environment(void) {
    static char text[2 * 4096];
    char folder[4096];
    snprintf(folder, sizeof folder, "%s", test_weft());
    *strrchr(folder, '/') = 0;
    snprintf(text, sizeof text, "CLUSTER=t%d CLUSTER_SHARE='%s' CLUSTER_OWNER=", (int)getpid(),
             folder);
    return text;
}

static const char *cluster(void) {
    static char text[3 * 4096];
    snprintf(text, sizeof text, "%s%d %s/tests/cluster/cluster", environment(), (int)getpid(),
             WEFT_SOURCE_DIR);
    return text;
}

static char out[16384];

static void need_cluster(void) {
    if (test_shell(out, sizeof out, "%s check", cluster()) != 0) {
        out[strcspn(out, "\n")] = 0;
        SKIP("no cluster of namespaces: %s", out);
    }
}

static void need_mpi(void) {
    if (!comm_built_with_mpi()) SKIP("built without MPI");
}

#define RUN(...)                                                                                   \
    do {                                                                                           \
        static char command_[32768];                                                               \
        snprintf(command_, sizeof command_, __VA_ARGS__);                                          \
        if (test_shell(out, sizeof out, "%s 2>&1", command_) != 0)                                 \
            test_fail(__FILE__, __LINE__, "%s: %s", command_, out);                                \
    } while (0)

static void up(int hosts, const char *rate) {
    RUN("%s up %d %s", cluster(), hosts, rate);
}

static const char *folder(void) {
    static char path[4096];
    RUN("%s folder", cluster());
    snprintf(path, sizeof path, "%.*s", (int)strcspn(out, "\n"), out);
    return path;
}

// `mpirun -n RANKS` over all hosts, `slots` ranks on each, of this program as a rank.
static void run_ranks(int hosts, int slots, const char *what) {
    char list[512] = "", self[4096];
    enum launch_mpi mpi;
    struct err err = {0};
    ssize_t size = readlink("/proc/self/exe", self, sizeof self - 1);
    CHECK(size > 0);
    self[size] = 0;
    CHECK_OK(launch_mpi_of(comm_library(), &mpi, &err), err);
    for (int i = 1; i <= hosts; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%snode%d:%d", i > 1 ? "," : "",
                 i, slots);
    const char *agent = folder();
    if (mpi == LAUNCH_OPEN_MPI)
        RUN("%s exec node1 env OMPI_MCA_plm_rsh_agent=%s/agent mpirun.openmpi --allow-run-as-root "
            "--map-by slot:OVERSUBSCRIBE --bind-to none --host %s -n %d -x %s='%s' %s",
            cluster(), agent, list, hosts * slots, RANK_VARIABLE, what, self);
    else
        RUN("%s exec node1 env HYDRA_LAUNCHER_EXEC=%s/agent mpiexec.hydra -launcher ssh -hosts %s "
            "-genv %s '%s' -n %d %s",
            cluster(), agent, list, RANK_VARIABLE, what, hosts * slots, self);
}

TEST(cluster_hosts_are_apart) {
    need_cluster();
    up(2, "");
    RUN("%s exec node1 sh -c 'touch /tmp/a /dev/shm/b; hostname; cat /etc/hosts'", cluster());
    CHECK_CONTAINS(out, "node1\n");
    CHECK_CONTAINS(out, "10.213.0.2 node2");
    RUN("%s exec node2 sh -c 'hostname; ls /tmp /dev/shm'", cluster());
    CHECK_CONTAINS(out, "node2\n");
    CHECK(strstr(out, "\na\n") == NULL && strstr(out, "\nb\n") == NULL);
    CHECK(!file_exists("/tmp/a") && !file_exists("/dev/shm/b"));
    RUN("%s hosts 3", cluster());
    CHECK_STR(out, "node1 slots=3\nnode2 slots=3\n");
    CHECK(test_shell(out, sizeof out, "%s exec node3 true", cluster()) != 0);
    CHECK_CONTAINS(out, "no host node3");
    CHECK(test_shell(out, sizeof out, "%s up 2", cluster()) != 0);
    CHECK_CONTAINS(out, "stands already");
    RUN("%s down", cluster());
    CHECK(test_shell(out, sizeof out, "%s exec node1 true", cluster()) != 0);
}

// Nothing stays behind when whoever made the cluster is killed.
TEST(cluster_goes_down_with_its_owner) {
    char state[64];
    need_cluster();
    snprintf(state, sizeof state, "/run/weft-cluster-t%d", (int)getpid());
    pid_t owner = fork();
    CHECK(owner >= 0);
    if (owner == 0) {
        pause();
        _exit(0);
    }
    RUN("%s%d %s/tests/cluster/cluster up 1", environment(), (int)owner, WEFT_SOURCE_DIR);
    CHECK(file_is_folder(state));
    RUN("cat %s/node1.pid", state);
    pid_t holder = (pid_t)strtol(out, NULL, 10);
    CHECK_EQ_INT(kill(holder, 0), 0);
    kill(owner, SIGKILL);
    CHECK_EQ_INT(waitpid(owner, NULL, 0), owner);
    while (file_is_folder(state) || kill(holder, 0) == 0) usleep(50000); // the test's limit counts
}

TEST(cluster_runs_ranks_on_two_hosts) {
    need_cluster();
    need_mpi();
    up(2, "");
    run_ranks(2, 2, "exchange");
    CHECK_CONTAINS(out, "sum 10 of 4 ranks on node1 node1 node2 node2\n");
    RUN("%s down", cluster());
}

static double seconds_of(uint64_t bytes) {
    char what[64];
    double seconds = 0;
    snprintf(what, sizeof what, "transfer %llu", (unsigned long long)bytes);
    run_ranks(2, 1, what);
    const char *at = strstr(out, "seconds ");
    CHECK(at != NULL && sscanf(at, "seconds %lf", &seconds) == 1);
    return seconds;
}

// A rate of 5 MB/s cannot be passed, however fast or slow the machine is.
TEST(cluster_keeps_a_rate) {
    const uint64_t bytes = 4000000, bucket = 131072;
    need_cluster();
    need_mpi();
    up(2, "");
    double fast = seconds_of(bytes);
    RUN("%s rate 40mbit", cluster());
    double slow = seconds_of(bytes);
    CHECK(slow > (double)(bytes - 2 * bucket) / 5e6);
    CHECK(slow > 2 * fast);
    RUN("%s rate none", cluster());
    CHECK(seconds_of(bytes) < slow / 2);
    RUN("%s down", cluster());
}

// weft launch over hosts: the program starts on both, through the same agent.
TEST(cluster_takes_weft_launch) {
    need_cluster();
    need_mpi();
    up(2, "");
    const char *shared = folder();
    RUN("%s hosts 2 >%s/hosts", cluster(), shared);
    RUN("%s exec node1 env OMPI_MCA_plm_rsh_agent=%s/agent HYDRA_LAUNCHER=ssh "
        "HYDRA_LAUNCHER_EXEC=%s/agent %s launch -n 4 --hosts %s/hosts version",
        cluster(), shared, shared, test_weft(), shared);
    int count = 0;
    for (const char *at = out; (at = strstr(at, "sources ")); at++) count++;
    CHECK_EQ_INT(count, 4);
    // a fault on the other host is named with it
    CHECK_EQ_INT(test_shell(out, sizeof out,
                            "%s exec node1 env OMPI_MCA_plm_rsh_agent=%s/agent HYDRA_LAUNCHER=ssh "
                            "HYDRA_LAUNCHER_EXEC=%s/agent %s launch -n 4 --hosts %s/hosts plot /no "
                            "2>&1",
                            cluster(), shared, shared, test_weft(), shared),
                 4);
    CHECK_CONTAINS(out, "weft: ranks 0-3 ended with status 4");
    RUN("%s down", cluster());
}
