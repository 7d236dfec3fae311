// Descriptions of faults: read, written, due; bits that flip. What a struck process does is tested
// with a child.
#include "guard/fault.h"
#include "base/json.h"
#include "test.h"
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int read_text(const char *text, struct fault *out, struct err *err) {
    json_t *object = json_parse(text, strlen(text), "fault", err);
    if (!object) return -1;
    int result = fault_read(out, object, err);
    json_decref(object);
    return result;
}

TEST(fault_names_of_kinds) {
    struct err err = {0};
    for (int k = FAULT_NONE + 1; k < FAULT_KIND_COUNT; k++) {
        enum fault_kind found = FAULT_NONE;
        const char *name = fault_kind_name((enum fault_kind)k);
        CHECK(name && name[0]);
        CHECK_OK(fault_kind_of(name, &found, &err), err);
        CHECK_EQ_INT(found, k);
    }
    enum fault_kind found = FAULT_NONE;
    CHECK_EQ_INT(fault_kind_of("flip_wieght", &found, &err), -1);
    CHECK_EQ_INT(err.kind, ERR_USAGE);
    CHECK_CONTAINS(err.text, "did you mean \"flip_weight\"");
    struct err none = {0};
    CHECK_EQ_INT(fault_kind_of("none", &found, &none), -1);
    CHECK_EQ_INT(found, FAULT_NONE);
}

TEST(fault_from_json_and_back) {
    struct err err = {0};
    struct fault f, again;
    CHECK_OK(read_text("{\"kind\":\"nan\"}", &f, &err), err);
    CHECK_EQ_INT(f.kind, FAULT_NAN);
    CHECK_EQ_INT(f.rank, -1);
    CHECK_EQ_INT(f.step, 0);
    CHECK_EQ_INT(f.attempt, -1);
    CHECK_EQ_INT(f.bit, -1);
    CHECK(!f.in_save && !f.done);
    CHECK_OK(
        read_text(
            "{\"kind\":\"slow\",\"rank\":3,\"step\":12,\"steps\":6,\"attempt\":1,\"when\":\"save\","
            "\"factor\":2.5,\"peer\":4,\"bit\":30,\"seed\":99}",
            &f, &err),
        err);
    json_t *object = fault_write(&f);
    CHECK(object != NULL);
    CHECK_OK(fault_read(&again, object, &err), err);
    json_decref(object);
    CHECK_EQ_INT(again.kind, FAULT_SLOW);
    CHECK_EQ_INT(again.rank, 3);
    CHECK_EQ_INT(again.step, 12);
    CHECK_EQ_INT(again.steps, 6);
    CHECK_EQ_INT(again.attempt, 1);
    CHECK(again.in_save);
    CHECK(again.factor == 2.5);
    CHECK_EQ_INT(again.peer, 4);
    CHECK_EQ_INT(again.bit, 30);
    CHECK_EQ_INT(again.seed, 99);
}

TEST(fault_that_is_none) {
    static const char *const bad[][2] = {
        {"[]", "JSON object"},
        {"{}", "kind"},
        {"{\"kind\":7}", "kind"},
        {"{\"kind\":\"burn\"}", "no kind of fault"},
        {"{\"kind\":\"kill\",\"rnak\":1}", "no \"rnak\""},
        {"{\"kind\":\"kill\",\"rank\":-2}", "fault.rank"},
        {"{\"kind\":\"kill\",\"rank\":1.5}", "rank"},
        {"{\"kind\":\"kill\",\"step\":-1}", "fault.step"},
        {"{\"kind\":\"kill\",\"when\":\"soon\"}", "fault.when"},
        {"{\"kind\":\"slow\",\"factor\":-1}", "fault.factor"},
        {"{\"kind\":\"nan\",\"bit\":32}", "fault.bit"},
        {"{\"kind\":\"nan\",\"seed\":\"x\"}", "seed"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct err err = {0};
        struct fault f = {.kind = FAULT_LEAK};
        CHECK_EQ_INT(read_text(bad[i][0], &f, &err), -1);
        CHECK_CONTAINS(err.text, bad[i][1]);
        CHECK_EQ_INT(f.kind, FAULT_LEAK);
    }
}

static struct fault *due(struct fault *f, int count, enum fault_kind kind, int rank, int64_t step) {
    return fault_due(f, count, kind, false, rank, step, 0);
}

TEST(fault_is_due_once_at_its_step) {
    struct fault list[2] = {{.kind = FAULT_KILL, .rank = 1, .step = 5},
                            {.kind = FAULT_KILL, .rank = -1, .step = 7}};
    CHECK(!due(list, 2, FAULT_KILL, 1, 4));
    CHECK(!due(list, 2, FAULT_KILL, 0, 5));
    CHECK(!due(list, 2, FAULT_HANG, 1, 5));
    CHECK(!due(list, 2, FAULT_KILL, 1, 6)); // resumed behind it: over
    CHECK(!fault_due(list, 2, FAULT_KILL, false, 1, 5, 1));
    CHECK(!fault_due(list, 2, FAULT_KILL, true, 1, 5, 0));
    CHECK(due(list, 2, FAULT_KILL, 1, 5) == &list[0]);
    CHECK(!due(list, 2, FAULT_KILL, 1, 5)); // a step that is done again
    CHECK(due(list, 2, FAULT_KILL, 3, 7) == &list[1]);
    struct fault always = {.kind = FAULT_KILL, .rank = 0, .step = 5, .attempt = -1};
    CHECK(fault_due(&always, 1, FAULT_KILL, false, 0, 5, 17) == &always);
}

TEST(fault_that_lasts) {
    struct fault f = {.kind = FAULT_SLOW, .rank = 0, .step = 5};
    CHECK(!due(&f, 1, FAULT_SLOW, 0, 4));
    for (int step = 5; step < 9; step++) CHECK(due(&f, 1, FAULT_SLOW, 0, step) == &f);
}

TEST(fault_that_lasts_for_some_steps) {
    struct fault f = {.kind = FAULT_LINK_FLAP, .rank = 0, .step = 5, .steps = 2};
    CHECK(!due(&f, 1, FAULT_LINK_FLAP, 0, 4));
    CHECK(due(&f, 1, FAULT_LINK_FLAP, 0, 5) == &f);
    CHECK(due(&f, 1, FAULT_LINK_FLAP, 0, 6) == &f);
    CHECK(!due(&f, 1, FAULT_LINK_FLAP, 0, 7));
    CHECK(f.done);
}

// Once in its step, or in each pass of as many steps as are asked for: those of a replay, too.
TEST(fault_that_lasts_if_asked) {
    static const enum fault_kind kinds[] = {FAULT_NAN, FAULT_SPIKE, FAULT_FLIP_GRADIENT,
                                            FAULT_FLIP_PRODUCT};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct fault once = {.kind = kinds[i], .rank = 0, .step = 5};
        CHECK(!fault_lasts(&once));
        CHECK(due(&once, 1, kinds[i], 0, 5) == &once);
        CHECK(!due(&once, 1, kinds[i], 0, 5));
        struct fault f = {.kind = kinds[i], .rank = 0, .step = 5, .steps = 2};
        CHECK(fault_lasts(&f));
        CHECK(!due(&f, 1, kinds[i], 0, 4));
        for (int pass = 0; pass < 6; pass++) CHECK(due(&f, 1, kinds[i], 0, 5 + pass / 3) == &f);
        CHECK(!due(&f, 1, kinds[i], 0, 7));
    }
    struct fault kill = {.kind = FAULT_KILL, .rank = 0, .step = 5, .steps = 2};
    CHECK(!fault_lasts(&kill));
    struct fault longest = {.kind = FAULT_NAN, .rank = 0, .step = 5, .steps = INT64_MAX};
    CHECK(due(&longest, 1, FAULT_NAN, 0, 1000000) == &longest);
}

TEST(fault_in_the_next_save) {
    struct fault f = {.kind = FAULT_KILL, .rank = 0, .step = 5, .in_save = true};
    CHECK(!fault_due(&f, 1, FAULT_KILL, true, 0, 4, 0));
    CHECK(fault_due(&f, 1, FAULT_KILL, true, 0, 10, 0) == &f);
    CHECK(!fault_due(&f, 1, FAULT_KILL, true, 0, 20, 0));
}

// One bit of one element; sign, exponent and upper mantissa all come up, others do not.
TEST(fault_flips_one_bit) {
    int seen[32] = {0};
    for (uint64_t seed = 0; seed < 400; seed++) {
        struct fault f = {.kind = FAULT_FLIP_WEIGHT, .bit = -1, .seed = seed, .step = 3};
        uint32_t wide[37] = {0};
        uint16_t half[37] = {0};
        int64_t at = fault_flip(&f, wide, 4, 37);
        CHECK(at >= 0 && at < 37);
        CHECK_EQ_INT(fault_flip(&f, half, 2, 37), at);
        CHECK_EQ_INT(wide[at], 1u << fault_bit(&f));
        CHECK_EQ_INT(half[at], wide[at] >> 16);
        for (int i = 0; i < 37; i++) CHECK(i == at || (wide[i] == 0 && half[i] == 0));
        seen[fault_bit(&f)]++;
    }
    for (int bit = 0; bit < 32; bit++) CHECK(bit < 16 ? seen[bit] == 0 : seen[bit] > 5);
    struct fault chosen = {.bit = 31};
    float one = 1;
    fault_flip(&chosen, &one, 4, 1);
    CHECK(one == -1);
}

static int status_of_struck(enum fault_kind kind, int options) {
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        fault_strike(&(struct fault){.kind = kind});
        _exit(99);
    }
    int status = 0;
    if (kind == FAULT_HANG) {
        usleep(50000);
        CHECK_EQ_INT(waitpid(child, &status, WNOHANG), 0);
        kill(child, SIGKILL);
    }
    CHECK_EQ_INT(waitpid(child, &status, options), child);
    if (WIFSTOPPED(status)) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    return status;
}

TEST(fault_strikes) {
    int status = status_of_struck(FAULT_EXIT, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    status = status_of_struck(FAULT_ABORT, 0);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    status = status_of_struck(FAULT_KILL, 0);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    status = status_of_struck(FAULT_STOP, WUNTRACED);
    CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    status = status_of_struck(FAULT_HANG, 0);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL); // by the test
}

TEST(fault_in_words) {
    char text[160];
    struct fault f = {.kind = FAULT_KILL, .rank = 2, .step = 12};
    CHECK_STR(fault_text(&f, text), "kill on rank 2 at step 12");
    f = (struct fault){.kind = FAULT_SLOW, .rank = -1};
    CHECK_STR(fault_text(&f, text), "slow on all ranks from the next step");
    f = (struct fault){.kind = FAULT_NAN, .rank = 1, .step = 3, .steps = 2};
    CHECK_STR(fault_text(&f, text), "nan on rank 1 from step 3");
}
