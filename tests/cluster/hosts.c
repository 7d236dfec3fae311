// Runs over hosts that are namespaces of this machine, see tests/cluster/cluster.
#include "base/file.h"
#include "comm/comm.h"
#include "namespaces.h"
#include "operate/launch.h"
#include "rank.h"
#include "test.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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
    const char *agent = cluster_folder();
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
    cluster_need();
    cluster_up(2, "");
    RUN("%s exec node1 sh -c 'touch /tmp/a /dev/shm/b; hostname; cat /etc/hosts'", cluster());
    CHECK_CONTAINS(cluster_out, "node1\n");
    CHECK_CONTAINS(cluster_out, "10.213.0.2 node2");
    RUN("%s exec node2 sh -c 'hostname; ls /tmp /dev/shm'", cluster());
    CHECK_CONTAINS(cluster_out, "node2\n");
    CHECK(strstr(cluster_out, "\na\n") == NULL && strstr(cluster_out, "\nb\n") == NULL);
    CHECK(!file_exists("/tmp/a") && !file_exists("/dev/shm/b"));
    RUN("%s hosts 3", cluster());
    CHECK_STR(cluster_out, "node1 slots=3\nnode2 slots=3\n");
    CHECK(test_shell(cluster_out, sizeof cluster_out, "%s exec node3 true", cluster()) != 0);
    CHECK_CONTAINS(cluster_out, "no host node3");
    CHECK(test_shell(cluster_out, sizeof cluster_out, "%s up 2", cluster()) != 0);
    CHECK_CONTAINS(cluster_out, "stands already");
    RUN("%s down", cluster());
    CHECK(test_shell(cluster_out, sizeof cluster_out, "%s exec node1 true", cluster()) != 0);
}

// Nothing stays behind when whoever made the cluster is killed.
TEST(cluster_goes_down_with_its_owner) {
    char state[64];
    cluster_need();
    snprintf(state, sizeof state, "/run/weft-cluster-t%d", (int)getpid());
    pid_t owner = fork();
    CHECK(owner >= 0);
    if (owner == 0) {
        pause();
        _exit(0);
    }
    RUN("%s%d %s/tests/cluster/cluster up 1", cluster_environment(), (int)owner, WEFT_SOURCE_DIR);
    CHECK(file_is_folder(state));
    RUN("cat %s/node1.pid", state);
    pid_t holder = (pid_t)strtol(cluster_out, NULL, 10);
    CHECK_EQ_INT(kill(holder, 0), 0);
    kill(owner, SIGKILL);
    CHECK_EQ_INT(waitpid(owner, NULL, 0), owner);
    while (file_is_folder(state) || kill(holder, 0) == 0) usleep(50000); // the test's limit counts
}

TEST(cluster_runs_ranks_on_two_hosts) {
    cluster_need();
    cluster_need_mpi();
    cluster_up(2, "");
    run_ranks(2, 2, "exchange");
    CHECK_CONTAINS(cluster_out, "sum 10 of 4 ranks on node1 node1 node2 node2\n");
    RUN("%s down", cluster());
}

static double seconds_of(uint64_t bytes) {
    char what[64];
    double seconds = 0;
    snprintf(what, sizeof what, "transfer %llu", (unsigned long long)bytes);
    run_ranks(2, 1, what);
    const char *at = strstr(cluster_out, "seconds ");
    CHECK(at != NULL && sscanf(at, "seconds %lf", &seconds) == 1);
    return seconds;
}

// A rate of 5 MB/s cannot be passed, however fast or slow the machine is.
TEST(cluster_keeps_a_rate) {
    const uint64_t bytes = 4000000, bucket = 131072;
    cluster_need();
    cluster_need_mpi();
    cluster_up(2, "");
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
    cluster_need();
    cluster_need_mpi();
    cluster_up(2, "");
    const char *shared = cluster_folder();
    RUN("%s hosts 2 >%s/hosts", cluster(), shared);
    RUN("%s exec node1 env OMPI_MCA_plm_rsh_agent=%s/agent HYDRA_LAUNCHER=ssh "
        "HYDRA_LAUNCHER_EXEC=%s/agent %s launch -n 4 --hosts %s/hosts version",
        cluster(), shared, shared, test_weft(), shared);
    int count = 0;
    for (const char *at = cluster_out; (at = strstr(at, "sources ")); at++) count++;
    CHECK_EQ_INT(count, 4);
    // a fault on the other host is named with it
    CHECK_EQ_INT(test_shell(cluster_out, sizeof cluster_out,
                            "%s exec node1 env OMPI_MCA_plm_rsh_agent=%s/agent HYDRA_LAUNCHER=ssh "
                            "HYDRA_LAUNCHER_EXEC=%s/agent %s launch -n 4 --hosts %s/hosts plot /no "
                            "2>&1",
                            cluster(), shared, shared, test_weft(), shared),
                 4);
    CHECK_CONTAINS(cluster_out, "weft: ranks 0-3 ended with status 4");
    RUN("%s down", cluster());
}
