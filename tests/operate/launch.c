// Hosts files, command lines of mpirun, and what ranks report.
#include "operate/launch.h"
#include "base/file.h"
#include "base/text.h"
#include "operate/hosts.h"
#include "operate/launch_report.h"
#include "test.h"
#include <stdio.h>
#include <string.h>

static const char *write_hosts(const char *text) {
    static char path[4200];
    struct err err = {0};
    snprintf(path, sizeof path, "%s/hosts", test_temp_dir());
    CHECK_OK(file_replace(path, text, strlen(text), &err), err);
    return path;
}

TEST(hosts_file) {
    struct err err = {0};
    struct hosts hosts;
    CHECK_OK(
        hosts_read(&hosts,
                   write_hosts("# two racks\n\n  a slots=4   # first\nb.example.org\tslots=2\r\n"
                               "10.0.0.7\n"),
                   &err),
        err);
    CHECK_EQ_INT(hosts.count, 3);
    CHECK_STR(hosts.list[0].name, "a");
    CHECK_EQ_INT(hosts.list[0].slots, 4);
    CHECK_STR(hosts.list[1].name, "b.example.org");
    CHECK_EQ_INT(hosts.list[1].slots, 2);
    CHECK_EQ_INT(hosts.list[2].slots, 1);
    CHECK_EQ_INT(hosts.slots, 7);
    hosts_free(&hosts);
}

TEST(hosts_file_faults_are_named) {
    static const char *const bad[][2] = {
        {"a slots=2\nb slots=0\n", "line 2: \"slots=0\" behind host b: expected slots=N"},
        {"a slots=two\n", "line 1: \"slots=two\""},
        {"a slots=\n", "line 1: \"slots=\""},
        {"a slots=99999999999999999999\n", "line 1"},
        {"a 4\n", "line 1: \"4\" behind host a"},
        {"a slots=2 b\n", "line 1: unexpected \"b\""},
        {"\n-host\n", "line 2: \"-host\" is no name of a host"},
        {"a,b slots=1\n", "line 1: \"a,b\" is no name of a host"},
        {"a\nb\na slots=2\n", "line 3: host a stands in the file already"},
        {"# nobody\n\n", "names no host"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err err = {0};
        struct hosts hosts;
        CHECK(hosts_read(&hosts, write_hosts(bad[i][0]), &err) != 0);
        CHECK_CONTAINS(err.text, bad[i][1]);
        CHECK_CONTAINS(err.text, "/hosts: ");
        CHECK_EQ_INT(err_exit_status(&err), 2);
    }
    struct err err = {0};
    struct hosts hosts;
    CHECK(hosts_read(&hosts, "/nonexistent/hosts", &err) != 0);
    CHECK_EQ_INT(err_exit_status(&err), 2);
}

TEST(hosts_that_nobody_knows) {
    struct err err = {0};
    struct hosts hosts;
    CHECK_OK(hosts_read(&hosts, write_hosts("localhost\n\nno-such-host.invalid slots=2\n"), &err),
             err);
    CHECK(hosts_resolve(&hosts, "my-hosts", &err) != 0);
    CHECK_CONTAINS(err.text, "my-hosts: line 3: host no-such-host.invalid is not known (");
    CHECK_EQ_INT(err_exit_status(&err), 2);
    hosts_free(&hosts);
}

TEST(hosts_of_two_names_are_one) {
    struct err err = {0};
    struct hosts hosts;
    CHECK_OK(
        hosts_read(&hosts, write_hosts("127.0.0.9\n127.0.0.7 slots=2\n# again\n127.0.7\n"), &err),
        err);
    CHECK(hosts_resolve(&hosts, "my-hosts", &err) != 0);
    CHECK_CONTAINS(err.text, "my-hosts: line 4: host 127.0.7 is the same machine as 127.0.0.7 of "
                             "line 2 (both are 127.0.0.7)");
    CHECK_EQ_INT(err_exit_status(&err), 2);
    hosts.count = 2;
    err = (struct err){0};
    CHECK_OK(hosts_resolve(&hosts, "my-hosts", &err), err);
    hosts.count = 3;
    hosts_free(&hosts);
}

TEST(hosts_that_are_here) {
    char address[64];
    struct err err = {0};
    CHECK(hosts_is_here("localhost"));
    CHECK(hosts_is_here("127.0.0.1"));
    CHECK(!hosts_is_here("no-such-host.invalid"));
    CHECK(!hosts_is_here("192.0.2.1")); // kept for documentation
    CHECK_OK(hosts_address_towards("127.0.0.1", address, sizeof address, &err), err);
    CHECK_STR(address, "127.0.0.1");
    CHECK(hosts_address_towards("no-such-host.invalid", address, sizeof address, &err) != 0);
    CHECK_CONTAINS(err.text, "no-such-host.invalid");
}

// The command as one text.
static const char *made(const struct launch_request *request) {
    static struct text line;
    struct err err = {0};
    struct launch_command command;
    line.size = 0;
    CHECK_OK(launch_command_make(&command, request, &err), err);
    CHECK(command.words[command.count] == NULL);
    for (int i = 0; i < command.count; i++)
        text_printf(&line, "%s%s", i ? " " : "", command.words[i]);
    launch_command_free(&command);
    return line.data;
}

TEST(launch_command_of_open_mpi) {
    char *words[] = {"train", "big config.yaml", "parallel.tp=2"};
    const char *exported[] = {"LD_LIBRARY_PATH"};
    struct launch_request r = {.mpi = LAUNCH_OPEN_MPI,
                               .starter = "/usr/bin/mpirun.openmpi",
                               .program = "/opt/weft",
                               .ranks = 4,
                               .threads = 2,
                               .words = words,
                               .word_count = 3};
    CHECK_STR(made(&r), "/usr/bin/mpirun.openmpi -n 4 --map-by slot:OVERSUBSCRIBE --bind-to none "
                        "--mca mpi_yield_when_idle 1 -x OMP_NUM_THREADS=2 /opt/weft launch "
                        "--keep-rank train big config.yaml parallel.tp=2");
    struct host list[] = {{"a", 2, 0}, {"b", 2, 0}};
    struct hosts hosts = {list, 2, 4};
    r.hosts = &hosts;
    r.is_root = true;
    r.threads = 0;
    r.exported = exported;
    r.exported_count = 1;
    CHECK_CONTAINS(made(&r), "mpirun.openmpi --allow-run-as-root -n 4 ");
    CHECK_CONTAINS(made(&r), " --host a:2,b:2 -x LD_LIBRARY_PATH /opt/weft launch ");
    CHECK(strstr(made(&r), "OMP_NUM_THREADS") == NULL);
}

TEST(launch_command_of_mpich) {
    char *words[] = {"bench", "step"};
    struct host list[] = {{"a", 3, 0}, {"b", 1, 0}};
    struct hosts hosts = {list, 2, 4};
    struct launch_request r = {.mpi = LAUNCH_MPICH,
                               .starter = "mpiexec.hydra",
                               .program = "/opt/weft",
                               .ranks = 4,
                               .hosts = &hosts,
                               .is_root = true,
                               .threads = 1,
                               .words = words,
                               .word_count = 2};
    CHECK_STR(made(&r), "mpiexec.hydra -bind-to none -hosts a:3,b:1 -genv OMP_NUM_THREADS 1 -n 4 "
                        "/opt/weft launch --keep-rank bench step");
}

TEST(launch_knows_the_mpi_of_the_program) {
    enum launch_mpi mpi;
    struct err err = {0};
    CHECK_OK(launch_mpi_of("Open MPI 4.1.4", &mpi, &err), err);
    CHECK_EQ_INT(mpi, LAUNCH_OPEN_MPI);
    CHECK_OK(launch_mpi_of("MPICH 4.0.2", &mpi, &err), err);
    CHECK_EQ_INT(mpi, LAUNCH_MPICH);
    CHECK(launch_mpi_of("none", &mpi, &err) != 0);
    CHECK_CONTAINS(err.text, "-DWEFT_MPI=openmpi");
}

// ---- reports

static void say(struct text *stream, int rank, const char *line) {
    struct text rest = {0};
    CHECK_EQ_INT(report_lines(stream, &rest, rank, line, strlen(line), false), 0);
    text_free(&rest);
}

// What the user sees of a stream that comes in pieces of `piece` bytes; the status at the end.
static int shown(const struct text *stream, size_t piece, int starter_status, bool verbose,
                 struct text *show) {
    struct report_reader reader;
    struct err err = {0};
    show->size = 0;
    CHECK_OK(report_open(&reader, 4, verbose, &err), err);
    for (size_t at = 0; at < stream->size; at += piece) {
        size_t bytes = stream->size - at < piece ? stream->size - at : piece;
        CHECK_EQ_INT(report_put(&reader, stream->data + at, bytes, show), 0);
    }
    int status = report_finish(&reader, starter_status, show);
    report_close(&reader);
    if (show->size == 0) text_puts(show, "");
    return status;
}

TEST(report_of_a_good_run) {
    struct text stream = {0}, show = {0};
    say(&stream, 0, "step 1\n");
    say(&stream, 2, "odd thing here\n");
    say(&stream, 0, "\n");
    for (int rank = 0; rank < 4; rank++) report_end(&stream, rank, 0, 0, "a", 1e9, 7);
    for (size_t piece = 1; piece < 40; piece += 13) {
        CHECK_EQ_INT(shown(&stream, piece, 0, false, &show), 0);
        CHECK_STR(show.data, "step 1\nrank 2: odd thing here\n\n");
    }
    text_free(&stream);
    text_free(&show);
}

TEST(report_names_the_rank_that_was_killed) {
    struct text stream = {0}, show = {0};
    say(&stream, 0, "step 1\n");
    report_end(&stream, 3, 0, 9, "node07", 1e9, 7);
    text_puts(&stream, "-------------\nmpirun noticed that process rank 3 with PID 0 died.\n");
    report_end(&stream, 0, 70, 0, "node06", 1e9, 7); // it lost its peer
    CHECK_EQ_INT(shown(&stream, 7, 137, false, &show), 128 + 9);
    CHECK_STR(show.data, "step 1\nweft: rank 3 on node07 ended by signal 9 (killed); the others "
                         "were stopped\n");
    CHECK_EQ_INT(shown(&stream, 7, 137, true, &show), 128 + 9);
    CHECK_CONTAINS(show.data, "mpirun noticed that process rank 3");
    text_free(&stream);
    text_free(&show);
}

// MPICH's mpiexec returns the statuses of all ranks or-ed together.
TEST(report_passes_the_status_of_the_first_rank) {
    struct text stream = {0}, show = {0};
    say(&stream, 1, "weft: c.yaml: line 3: no\n");
    say(&stream, 0, "weft: c.yaml: line 3: no\n");
    say(&stream, 3, "weft: c.yaml: line 3: no\n");
    report_end(&stream, 1, 2, 0, "a", 1e9, 7);
    report_end(&stream, 0, 2, 0, "a", 1e9, 7);
    report_end(&stream, 3, 2, 0, "b", 1e9, 7);
    CHECK_EQ_INT(shown(&stream, 1000, 11, false, &show), 2);
    CHECK_STR(show.data, "rank 1: weft: c.yaml: line 3: no\nweft: ranks 0-1,3 ended with status 2; "
                         "the others were stopped\n");
    stream.size = 0;
    for (int rank = 0; rank < 4; rank++) report_end(&stream, rank, 130, 0, "a", 1e9, 7);
    CHECK_EQ_INT(shown(&stream, 1000, 130, false, &show), 130); // the user's own wish
    CHECK_STR(show.data, "");
    text_free(&stream);
    text_free(&show);
}

TEST(report_of_mpirun_itself_is_one_line) {
    struct text stream = {0}, show = {0};
    text_puts(&stream, "ssh: Could not resolve hostname b\n"
                       "--------------------------------------------------\n"
                       "ORTE was unable to reliably start one or more daemons.\n\n  * not finding "
                       "the required libraries\n");
    for (int i = 0; i < 40; i++) text_puts(&stream, "This usually is caused by something else.\n");
    CHECK_EQ_INT(shown(&stream, 50, 1, false, &show), 1);
    CHECK_CONTAINS(show.data, "weft: mpirun ended with status 1 before a rank said why: ssh: Could "
                              "not resolve hostname b ORTE was unable");
    CHECK_CONTAINS(show.data, "--verbose");
    CHECK(strchr(show.data, '\n') == show.data + show.size - 1);
    CHECK(show.size < 500);
    text_free(&stream);
    text_free(&show);
}

TEST(report_lines_survive_long_and_broken_text) {
    static char line[3 * REPORT_PIECE_BYTES + 10];
    struct text stream = {0}, rest = {0}, show = {0};
    memset(line, 'x', sizeof line - 2);
    line[sizeof line - 2] = '\n';
    say(&stream, 0, line);
    CHECK_EQ_INT(shown(&stream, 333, 0, false, &show), 0);
    CHECK_STR(show.data, line);

    // no newline at the end; a piece that waits is shown when the keeper has nothing further
    stream.size = 0;
    CHECK_EQ_INT(report_lines(&stream, &rest, 0, "50 %", 4, false), 0);
    CHECK_EQ_INT(stream.size, 0);
    CHECK_EQ_INT(report_lines(&stream, &rest, 0, "", 0, true), 0);
    CHECK_EQ_INT(report_lines(&stream, &rest, 0, " done\n", 6, false), 0);
    CHECK_EQ_INT(shown(&stream, 3, 0, false, &show), 0);
    CHECK_STR(show.data, "50 % done\n");

    // records of ranks that do not exist, marks inside a line, records glued to mpirun's text
    stream.size = 0;
    say(&stream, 9, "from nowhere\n");
    say(&stream, 1,
        "a\x1e"
        "2:b\n");
    text_puts(&stream, "mpirun: half a line");
    report_end(&stream, 2, 5, 0, "h", 1e9, 7);
    CHECK_EQ_INT(shown(&stream, 11, 5, false, &show), 5);
    CHECK_STR(show.data, "rank 1: a?2:b\nweft: rank 2 on h ended with status 5; the others were "
                         "stopped\n");
    text_free(&stream);
    text_free(&rest);
    text_free(&show);
}

// What a rank said of its failure is kept for the record, and not taken from another one.
TEST(report_keeps_last_messages) {
    struct report_reader reader;
    struct text stream = {0}, rest = {0}, show = {0};
    struct err err = {0};
    CHECK_OK(report_open(&reader, 3, false, &err), err);
    static const char said[] = "weft: no room\nbye\n";
    report_lines(&stream, &rest, 1, said, sizeof said - 1, true);
    report_end(&stream, 0, 4, 0, "a", 1e9, 7);
    report_end(&stream, 1, 4, 0, "a", 1e9, 7);
    report_put(&reader, stream.data, stream.size, &show);
    CHECK_STR(report_message(&reader, 1), "no room");
    CHECK_STR(report_message(&reader, 0), "no room"); // was silent: another one speaks for it
    CHECK_EQ_INT(reader.rank[1].step, 7);
    CHECK_CLOSE(reader.rank[1].time, 1e9, 0);
    report_close(&reader);
    CHECK_OK(report_open(&reader, 3, false, &err), err);
    CHECK_STR(report_message(&reader, 2), "");
    report_close(&reader);
    text_free(&stream);
    text_free(&rest);
    text_free(&show);
}

// What rank 0 says at every start is shown at the first one.
// `said`: its last words, NULL: none.
static void end_rank(struct text *stream, int rank, const char *said, int status, int signal) {
    struct text rest = {0};
    char line[300], host[32];
    snprintf(line, sizeof line, "weft: %s\n", said ? said : "");
    snprintf(host, sizeof host, "node%d", rank + 1);
    if (said) report_lines(stream, &rest, rank, line, strlen(line), true);
    report_end(stream, rank, status, signal, host, 1e9, 7);
    text_free(&rest);
}

static int culprit_of(struct text *stream, bool *sure) {
    struct report_reader reader;
    struct err err = {0};
    struct text show = {0}, failed = {0};
    char host[32];
    CHECK_OK(report_open(&reader, 4, false, &err), err);
    report_put(&reader, stream->data, stream->size, &show);
    int rank = report_culprit(&reader, sure);
    if (reader.failed == 1) {
        report_failed(&reader, rank, &failed);
        snprintf(host, sizeof host, "on node%d ", rank + 1);
        CHECK_CONTAINS(failed.data, host);
    }
    report_close(&reader);
    text_free(&show);
    text_free(&failed);
    stream->size = 0;
    return rank;
}

// Ranks that were told of a failure end as the one that failed, and may be the first to do so.
TEST(report_finds_the_rank_that_failed) {
    static const char told[] = "rank 3 (node4) reports: disk: Input/output error";
    struct text s = {0};
    bool sure;
    end_rank(&s, 1, told, 4, 0);
    end_rank(&s, 0, NULL, 4, 0);
    end_rank(&s, 3, "disk: Input/output error", 4, 0);
    end_rank(&s, 2, NULL, 4, 0);
    CHECK_EQ_INT(culprit_of(&s, &sure), 3);
    CHECK(sure);
    end_rank(&s, 1, told, 4, 0); // the one that failed has not ended yet
    end_rank(&s, 0, NULL, 4, 0);
    CHECK_EQ_INT(culprit_of(&s, &sure), 0);
    CHECK(!sure);
    end_rank(&s, 1, told, 4, 0);
    CHECK_EQ_INT(culprit_of(&s, &sure), 1);
    CHECK(!sure);
    end_rank(&s, 0, NULL, 4, 0); // its core took its time
    end_rank(&s, 2, NULL, 0, 11);
    end_rank(&s, 3, "nothing came from rank 2 (node3)", 75, 0);
    CHECK_EQ_INT(culprit_of(&s, &sure), 2);
    CHECK(sure);
    end_rank(&s, 2, "disk: Input/output error", 4, 0); // was the first, too
    end_rank(&s, 1, "disk: Input/output error", 4, 0);
    CHECK_EQ_INT(culprit_of(&s, &sure), 2);
    CHECK(sure);
    end_rank(&s, 2, NULL, 1, 0); // alone, whatever it said
    CHECK_EQ_INT(culprit_of(&s, &sure), 2);
    CHECK(sure);
    end_rank(&s, 0, NULL, 0, 0);
    CHECK_EQ_INT(culprit_of(&s, &sure), -1);
    text_free(&s);
}

TEST(report_leaves_out_what_is_known) {
    struct report_reader reader;
    struct report_known known = {.learning = true};
    struct text stream = {0}, rest = {0}, show = {0};
    struct err err = {0};
    static const char banner[] = "model: small\n", news[] = "model: small\nresumed\n";
    CHECK_OK(report_open(&reader, 2, false, &err), err);
    reader.known = &known;
    report_lines(&stream, &rest, 0, banner, sizeof banner - 1, true);
    report_put(&reader, stream.data, stream.size, &show);
    CHECK_STR(show.data, "model: small\n");
    report_close(&reader);
    known.learning = false;
    stream.size = show.size = 0;
    CHECK_OK(report_open(&reader, 2, false, &err), err);
    reader.known = &known;
    report_lines(&stream, &rest, 0, news, sizeof news - 1, true);
    static const char other[] = "model: small\n[node1:71] Read -1, expected 49152, errno = 3\n";
    report_lines(&stream, &rest, 1, other, sizeof other - 1, true);
    report_put(&reader, stream.data, stream.size, &show);
    CHECK_STR(show.data, "resumed\nrank 1: model: small\n");
    report_close(&reader);
    text_free(&stream);
    text_free(&rest);
    text_free(&show);
}
