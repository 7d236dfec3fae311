// Which rank runs where, as hosts come and go.
#include "operate/place.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// "a:2 b:2 c" as hosts.
static struct hosts hosts_of(const char *text) {
    struct hosts hosts = {.list = calloc(16, sizeof(struct host))};
    char copy[256], *rest = NULL;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *colon = strchr(word, ':');
        if (colon) *colon++ = 0;
        struct host *h = &hosts.list[hosts.count++];
        h->name = strdup(word);
        h->slots = colon ? atoi(colon) : 1;
        hosts.slots += h->slots;
    }
    return hosts;
}

static struct place placed(const char *text, int spares, struct place_shape shape) {
    struct place p;
    struct err err = {0};
    struct hosts hosts = hosts_of(text);
    CHECK_OK(place_open(&p, &hosts, spares, &shape, &err), err);
    hosts_free(&hosts);
    return p;
}

static const struct place_shape four = {
    .unit = 1, .replicas = 4, .batch = 16, .micro_batch = 1, .elastic = true};

// Host of each rank, "a a b b", then the spares "| c", as one text.
static const char *shown(const struct place *p) {
    static char text[512];
    text[0] = 0;
    for (int rank = 0; rank < place_ranks(p); rank++) {
        int host = place_host_of(p, rank);
        CHECK(host >= 0 && p->hosts[host].state == PLACE_IN_USE);
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s ", p->hosts[host].name);
    }
    snprintf(text + strlen(text), sizeof text - strlen(text), "|");
    for (int i = 0; i < p->count; i++)
        if (p->hosts[i].state == PLACE_SPARE)
            snprintf(text + strlen(text), sizeof text - strlen(text), " %s", p->hosts[i].name);
    CHECK_EQ_INT(place_host_of(p, place_ranks(p)), -1);
    CHECK_EQ_INT(place_host_of(p, -1), -1);
    return text;
}

static const char *listed(const struct place *p) {
    static char text[512];
    struct hosts hosts;
    struct err err = {0};
    text[0] = 0;
    CHECK_OK(place_hosts(p, &hosts, &err), err);
    for (int i = 0; i < hosts.count; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s:%d", i ? "," : "",
                 hosts.list[i].name, hosts.list[i].slots);
    hosts_free(&hosts);
    return text;
}

static int evict(struct place *p, const char *name) {
    int spare;
    struct err err = {0};
    CHECK_OK(place_evict(p, place_find(p, name), &spare, &err), err);
    return spare;
}

TEST(place_fills_one_host_before_the_next) {
    struct place p = placed("a:2 b:2 c:2", 1, four);
    CHECK_STR(shown(&p), "a a b b | c");
    CHECK_STR(listed(&p), "a:2,b:2");
    place_close(&p);
    p = placed("a:1 b:3 c:2", 0, four); // the last one is not needed
    CHECK_STR(shown(&p), "a b b b | c");
    place_close(&p);
    p = placed("a b:2 c", 1,
               (struct place_shape){.unit = 2, .replicas = 4, .batch = 8, .micro_batch = 1});
    CHECK_STR(shown(&p), "a a a b b b b b | c"); // 8 ranks on 3 slots: three times as many each
    CHECK_STR(listed(&p), "a:3,b:6");
    place_close(&p);
}

TEST(place_wants_a_host_to_run_on) {
    struct place p;
    struct err err = {0};
    struct hosts hosts = hosts_of("a b");
    CHECK(place_open(&p, &hosts, 2, &four, &err) != 0);
    CHECK_CONTAINS(err.text, "2 spare hosts of 2");
    CHECK_EQ_INT(err_exit_status(&err), 2);
    err = (struct err){0};
    CHECK(place_open(&p, &hosts, -1, &four, &err) != 0);
    hosts_free(&hosts);
}

TEST(place_spare_takes_the_place) {
    struct place p =
        placed("a:2 b:2 c:2 d:2", 1,
               (struct place_shape){.unit = 2, .replicas = 3, .batch = 12, .micro_batch = 2});
    CHECK_STR(shown(&p), "a a b b c c | d");
    int spare = evict(&p, "b");
    CHECK_EQ_INT(spare, 3);
    CHECK_STR(shown(&p), "a a d d c c |"); // a and c stay where their snapshots lie
    CHECK_STR(listed(&p), "a:2,d:2,c:2");
    CHECK_EQ_INT(p.hosts[1].failures, 1);
    CHECK(!place_return(&p, 1)); // becomes a spare: all replicas run
    CHECK_STR(shown(&p), "a a d d c c | b");
    CHECK_EQ_INT(evict(&p, "a"), 1);
    CHECK_STR(shown(&p), "b b d d c c |");
    place_close(&p);
}

TEST(place_chooses_among_spares) {
    struct place p = placed("a:2 b:2 c:1 d:4 e:2", 3, four);
    CHECK_EQ_INT(evict(&p, "a"), 4); // the smallest that is enough
    CHECK_STR(shown(&p), "e e b b | c d");
    CHECK_EQ_INT(evict(&p, "b"), 3);
    CHECK_STR(shown(&p), "e e d d | c");
    CHECK_EQ_INT(evict(&p, "c"), -1); // a spare fails: nothing moves
    CHECK_STR(shown(&p), "e e d d |");
    place_close(&p);
    p = placed("a:2 b:2 c d", 2, four); // two small ones together
    CHECK_EQ_INT(evict(&p, "a"), 2);
    CHECK_STR(shown(&p), "c b b d |");
    place_close(&p);
}

TEST(place_shrinks_and_grows) {
    struct place p = placed("a b c d", 0, four);
    CHECK_EQ_INT(evict(&p, "b"), -1);
    CHECK_EQ_INT(p.replicas, 2); // 3 does not divide 16
    CHECK_STR(shown(&p), "a c | d");
    CHECK_EQ_INT(evict(&p, "a"), 3);
    CHECK_STR(shown(&p), "d c |");
    CHECK_EQ_INT(evict(&p, "c"), -1);
    CHECK_STR(shown(&p), "d |");
    CHECK(place_return(&p, place_find(&p, "a")));
    CHECK_EQ_INT(place_grow(&p), 2);
    CHECK_STR(shown(&p), "d a |");
    CHECK(!place_return(&p, place_find(&p, "b"))); // 3 would not fit
    CHECK(place_return(&p, place_find(&p, "c")));
    CHECK_EQ_INT(place_grow(&p), 4);
    CHECK_EQ_INT(place_grow(&p), 4);
    CHECK_STR(shown(&p), "d a b c |");
    place_close(&p);
}

TEST(place_shrinks_by_whole_replicas) {
    struct place p =
        placed("a:3 b:3 c:3", 0,
               (struct place_shape){
                   .unit = 2, .replicas = 4, .batch = 24, .micro_batch = 2, .elastic = true});
    CHECK_STR(shown(&p), "a a a b b b c c |");
    evict(&p, "c");
    CHECK_EQ_INT(p.replicas, 3);
    CHECK_STR(shown(&p), "a a a b b b |");
    evict(&p, "a");
    CHECK_EQ_INT(p.replicas, 1);
    CHECK_STR(shown(&p), "b b |");
    int spare;
    struct err err = {0};
    CHECK(place_evict(&p, 1, &spare, &err) != 0);
    CHECK_EQ_INT(spare, -1);
    CHECK_CONTAINS(err.text, "without host b");
    CHECK_EQ_INT(err_exit_status(&err), 75);
    place_close(&p);
}

TEST(place_that_must_not_shrink_says_so) {
    struct place_shape rigid = four;
    struct err err = {0};
    int spare;
    rigid.elastic = false;
    struct place p = placed("a:2 b:2 c", 1, rigid);
    CHECK(place_evict(&p, 0, &spare, &err) != 0); // c has one slot, two are needed
    CHECK_CONTAINS(err.text, "must not shrink");
    CHECK_CONTAINS(err.text, "4 ranks");
    CHECK(p.hosts[0].state == PLACE_EVICTED);
    place_close(&p);
}

static bool even(void *context, int replicas) {
    (void)context;
    return replicas % 2 == 0;
}

TEST(place_fitting_replicas) {
    struct place_shape s = {.unit = 1, .replicas = 12, .batch = 48, .micro_batch = 4};
    static const int expected[] = {0, 1, 2, 3, 4, 4, 6, 6, 6, 6, 6, 6, 12, 12};
    for (int most = 0; most < 14; most++) CHECK_EQ_INT(place_fitting(&s, most), expected[most]);
    s.fits = even; // experts over pairs of data ranks
    CHECK_EQ_INT(place_fitting(&s, 3), 2);
    CHECK_EQ_INT(place_fitting(&s, 1), 0);
}

TEST(place_buddies_make_a_ring) {
    struct place p =
        placed("a b c d", 1,
               (struct place_shape){
                   .unit = 1, .replicas = 3, .batch = 12, .micro_batch = 1, .elastic = true});
    CHECK_EQ_INT(place_buddy(&p, 0), 1);
    CHECK_EQ_INT(place_buddy(&p, 2), 0);
    CHECK_EQ_INT(place_buddy(&p, 3), -1); // a spare has nothing to copy
    evict(&p, "b");
    CHECK_EQ_INT(place_buddy(&p, 0), 3);
    CHECK_EQ_INT(place_buddy(&p, 3), 2);
    place_close(&p);
    p = placed("a:4 b:4", 1, four);
    CHECK_EQ_INT(place_buddy(&p, 0), 1); // the only one: a spare keeps its copy
    evict(&p, "b");
    CHECK_EQ_INT(place_buddy(&p, 0), -1);
    place_close(&p);
}

// Whatever comes and goes: every rank has a place, no host takes more than it may, and evicted
// hosts none.
TEST(place_holds_through_any_history) {
    unsigned state = 7;
    for (int round = 0; round < 300; round++) {
        struct place p = placed("a:1 b:2 c:3 d:2 e:1 f:4", round % 4,
                                (struct place_shape){.unit = 1 + round % 3,
                                                     .replicas = 4,
                                                     .batch = 24,
                                                     .micro_batch = 2,
                                                     .elastic = round % 5 > 0});
        for (int i = 0; i < 12; i++) {
            struct err err = {0};
            int spare, host = (int)((state = state * 1103515245u + 12345u) >> 16) % p.count;
            if (state >> 31) {
                if (place_return(&p, host)) CHECK(place_grow(&p) > 0);
            } else if (place_evict(&p, host, &spare, &err) != 0) {
                break;
            }
            int load[6] = {0};
            CHECK(p.replicas >= 1 && p.replicas <= 4 && 12 % p.replicas == 0);
            for (int rank = 0; rank < place_ranks(&p); rank++) {
                int at = place_host_of(&p, rank);
                CHECK(at >= 0 && p.hosts[at].state == PLACE_IN_USE);
                load[at]++;
            }
            for (int h = 0; h < p.count; h++) {
                CHECK(load[h] <= p.hosts[h].slots * p.crowding);
                CHECK((load[h] > 0) == (p.hosts[h].state == PLACE_IN_USE));
            }
        }
        place_close(&p);
    }
}
