// Each check of a machine passes here, and fails when its data are damaged.
#include "operate/health.h"
#include "base/file.h"
#include "test.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct health found;

static struct health_options small(void) {
    static struct counters_places none;
    none = (struct counters_places){"/nowhere", "/nowhere.so", "/nowhere.log"};
    return (struct health_options){.threads = 2,
                                   .gemm_seconds = 1e-6,
                                   .memory_bytes = 8 << 20,
                                   .folder = test_temp_dir(),
                                   .disk_bytes = 3 << 20,
                                   .link_bytes = 3 << 20,
                                   .counters = &none};
}

static const struct health_check *check_of(const char *name) {
    for (int i = 0; i < found.count; i++)
        if (strncmp(found.checks[i].name, name, strlen(name)) == 0) return &found.checks[i];
    test_fail(__FILE__, __LINE__, "no check \"%s\"", name);
}

TEST(health_of_a_good_machine) {
    struct err err = {0};
    struct health_options o = small();
    CHECK_OK(health_run(&o, &found, &err), err);
    for (int i = 0; i < found.count; i++)
        if (!found.checks[i].passed)
            test_fail(__FILE__, __LINE__, "%s: %s", found.checks[i].name, found.checks[i].found);
    CHECK_EQ_INT(found.count, 5);
    CHECK(found.passed && check_of("gemm fp32")->rate > 0 && check_of("gemm bf16")->rate > 0);
    CHECK_CONTAINS(check_of("gemm bf16")->found, "0 of 256 sampled sums are off");
    CHECK_CONTAINS(check_of("disk")->found, "0 bytes are wrong");
    CHECK_OK(health_verdict(&found, "node1", &err), err);
    char **names;
    size_t count;
    CHECK_OK(file_list(test_temp_dir(), &names, &count, &err), err);
    CHECK_EQ_INT(count, 0); // its file is gone
    file_list_free(names, count);
}

static void breaks(const char *name, const char *says) {
    struct err err = {0};
    struct health_options o = small();
    o.break_check = name;
    CHECK_OK(health_run(&o, &found, &err), err);
    for (int i = 0; i < found.count; i++)
        CHECK_EQ_INT(found.checks[i].passed,
                     strncmp(found.checks[i].name, name, strlen(name)) != 0);
    CHECK_EQ_INT(found.passed, false);
    CHECK_CONTAINS(check_of(name)->found, says);
    CHECK_EQ_INT(health_verdict(&found, "node1", &err), -1);
    CHECK_EQ_INT(err_exit_status(&err), 76);
    CHECK_CONTAINS(err.text, "host node1 is not fit: ");
    CHECK_CONTAINS(err.text, says);
    CHECK(strchr(err.text, '\n') == NULL);
}

TEST(health_finds_a_wrong_product) {
    breaks("gemm fp32", " of 3 results differ from the first");
    CHECK(strstr(check_of("gemm fp32")->found, ", 0 of 3 results") == NULL);
    breaks("gemm bf16", " of 3 results differ from the first");
}

TEST(health_finds_a_wrong_word_of_memory) {
    breaks("memory", "1 words are wrong, the first at byte 4194304");
}

TEST(health_finds_a_wrong_byte_on_disk) {
    breaks("disk", " bytes are wrong");
}

TEST(health_of_a_full_disk) {
    struct err err = {0};
    struct health_options o = small();
    file_fail_after(1 << 20, ENOSPC);
    CHECK_OK(health_run(&o, &found, &err), err);
    file_fail_after(0, 0);
    CHECK_EQ_INT(check_of("disk")->passed, false);
    CHECK_EQ_INT(check_of("disk")->unanswered, true);
    CHECK_CONTAINS(check_of("disk")->found, "No space left");
    o.folder = "/nowhere/at/all";
    CHECK_OK(health_run(&o, &found, &err), err);
    CHECK_EQ_INT(check_of("disk")->passed, false);
    CHECK_CONTAINS(check_of("disk")->found, "/nowhere/at/all");
}

TEST(health_compares_with_a_better_time) {
    struct err err = {0};
    struct health_options o = small();
    CHECK_OK(health_run(&o, &found, &err), err);
    json_t *then = health_json(&found), *checks = json_object_get(then, "checks");
    for (size_t i = 0; i < json_array_size(checks); i++) {
        json_t *one = json_array_get(checks, i);
        const char *name = json_string_value(json_object_get(one, "name"));
        double factor = strcmp(name, "memory") == 0 ? 1000 : 0.001;
        if (json_object_get(one, "rate"))
            json_object_set_new(
                one, "rate", json_real(factor * json_number_value(json_object_get(one, "rate"))));
    }
    o.against = then;
    CHECK_OK(health_run(&o, &found, &err), err);
    CHECK_EQ_INT(check_of("memory")->passed, false);
    CHECK_CONTAINS(check_of("memory")->found, "% of what it was (wanted: 50 %)");
    CHECK_EQ_INT(check_of("gemm fp32")->passed, true);
    json_decref(then);
}

TEST(health_reads_the_machine_s_counters) {
    struct err err = {0};
    struct health_options o = small();
    struct counters_places places = {test_path("edac"), "/nowhere.so", "/nowhere.log"};
    char folder[4300];
    snprintf(folder, sizeof folder, "%s/mc0", places.edac_folder);
    CHECK_OK(file_make_folders(folder, &err), err);
    o.counters = &places;
    for (int errors = 0; errors < 2; errors++) {
        char path[4400], text[8];
        snprintf(text, sizeof text, "%d\n", errors);
        snprintf(path, sizeof path, "%s/ue_count", folder);
        CHECK_OK(file_replace(path, text, 2, &err), err);
        snprintf(path, sizeof path, "%s/ce_count", folder);
        CHECK_OK(file_replace(path, "0\n", 2, &err), err);
        CHECK_OK(health_run(&o, &found, &err), err);
        CHECK_EQ_INT(check_of("counters")->passed, errors == 0);
    }
}

// ---- links

static struct server {
    pthread_t thread;
    int listener, port;
    struct wire_key key;
    volatile bool stop;
} server;

static void *serve(void *context) {
    (void)context;
    struct err err = {0};
    health_listen(server.listener, &server.key, &server.stop, &err);
    return NULL;
}

static void start_server(void) {
    struct err err = {0};
    CHECK_OK(wire_key_make(&server.key, &err), err);
    CHECK_OK(wire_listen("127.0.0.1", 0, &server.listener, &server.port, &err), err);
    CHECK_EQ_INT(pthread_create(&server.thread, NULL, serve, NULL), 0);
}

static void stop_server(void) {
    server.stop = true;
    pthread_join(server.thread, NULL);
    close(server.listener);
}

static void run_link(const struct wire_key *key, const char *broken) {
    struct err err = {0};
    struct health_options o = small();
    char peer[64];
    const char *peers[] = {peer};
    snprintf(peer, sizeof peer, "127.0.0.1:%d", server.port);
    o.peers = peers;
    o.peer_count = 1;
    o.key = key;
    o.break_check = broken;
    CHECK_OK(health_run(&o, &found, &err), err);
}

TEST(health_measures_a_link) {
    start_server();
    for (int i = 0; i < 2; i++) { // one after the other
        run_link(&server.key, NULL);
        CHECK_EQ_INT(check_of("link")->passed, true);
        CHECK(check_of("link")->rate > 0 && check_of("link")->seconds > 0);
        CHECK_CONTAINS(check_of("link")->found, " 0 bytes of 6 MB are wrong");
    }
    run_link(&server.key, "link");
    CHECK_EQ_INT(check_of("link")->passed, false);
    CHECK_EQ_INT(check_of("link")->unanswered, false);
    CHECK_CONTAINS(check_of("link")->found, " 1 bytes of 6 MB are wrong");
    struct wire_key other = server.key;
    other.bytes[3] ^= 1;
    run_link(&other, NULL);
    CHECK_EQ_INT(check_of("link")->passed, false);
    run_link(&server.key, NULL); // goes on after a stranger
    CHECK_EQ_INT(check_of("link")->passed, true);
    stop_server();
    run_link(&server.key, NULL);
    CHECK_EQ_INT(check_of("link")->passed, false);
    CHECK_EQ_INT(check_of("link")->unanswered, true);
    CHECK_CONTAINS(check_of("link")->found, "127.0.0.1");
}

TEST(health_refuses_bad_peers) {
    static const char *const bad[] = {"node3", "node3:", "node3:x", "node3:70000", "node3:12x"};
    struct wire_key key = {{1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err err = {0};
        struct health_options o = small();
        o.peers = &bad[i];
        o.peer_count = 1;
        o.key = &key;
        CHECK_EQ_INT(health_run(&o, &found, &err), -1);
        CHECK_EQ_INT(err.kind, ERR_USAGE);
        CHECK_CONTAINS(err.text, bad[i]);
    }
}
