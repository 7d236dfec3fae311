// Boxes that tile a tensor, their names, and the shares of copies.
#include "checkpoint/pieces.h"
#include "ranks.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 4096 };

// Cuts `whole` at random: into two by rows or columns, into runs of elements, or not at all.
static int cut(struct box whole, unsigned *state, struct box *out) {
    int64_t kind = random_below(state, 4);
    if (box_elements(whole) == 1 || (kind == 0 && box_elements(whole) < 200)) {
        *out = whole;
        return 1;
    }
    if (kind == 1) {
        int64_t at = random_below(state, box_elements(whole) + 1);
        int count = box_range(whole, 0, at, out);
        return count + box_range(whole, at, box_elements(whole) - at, out + count);
    }
    struct box a = whole, b = whole;
    if ((kind == 2 || whole.columns == 1) && whole.rows > 1) {
        a.rows = 1 + random_below(state, whole.rows - 1);
        b.row += a.rows;
        b.rows -= a.rows;
    } else if (whole.columns > 1) {
        a.columns = 1 + random_below(state, whole.columns - 1);
        b.column += a.columns;
        b.columns -= a.columns;
    } else {
        *out = whole;
        return 1;
    }
    int count = cut(a, state, out);
    return count + cut(b, state, out + count);
}

// What painting every element says.
static enum box_cover paint(const struct box *boxes, int count, struct box target) {
    unsigned char *times = calloc((size_t)box_elements(target), 1);
    enum box_cover found = COVER_EXACT;
    for (int i = 0; i < count; i++)
        for (int64_t r = 0; r < boxes[i].rows; r++)
            for (int64_t c = 0; c < boxes[i].columns; c++)
                times[(boxes[i].row - target.row + r) * target.columns + boxes[i].column -
                      target.column + c]++;
    for (int64_t i = 0; i < box_elements(target) && found == COVER_EXACT; i++)
        if (times[i] != 1) found = times[i] == 0 ? COVER_HOLE : COVER_TWICE;
    free(times);
    return found;
}

TEST(random_tilings_are_recognised_and_their_faults_too) {
    static struct box boxes[MOST], copy[MOST];
    unsigned state = 5;
    int faults[3] = {0};
    for (int round = 0; round < 3000; round++) {
        struct box fault = {0}, target = {random_below(&state, 5), 1 + random_below(&state, 12),
                                          random_below(&state, 5), 1 + random_below(&state, 12)};
        int count = cut(target, &state, boxes);
        int64_t chosen = random_below(&state, count);
        if (round % 3 == 1 && count > 1) {
            count--;
            boxes[chosen] = boxes[count];
        } else if (round % 3 == 2) {
            boxes[count] = boxes[chosen];
            count++;
        }
        memcpy(copy, boxes, (size_t)count * sizeof *boxes);
        enum box_cover found = box_cover(boxes, count, target, &fault);
        enum box_cover expected = paint(copy, count, target);
        CHECK_EQ_INT(found, expected);
        faults[found]++;
        if (found == COVER_EXACT) continue;
        CHECK(box_elements(fault) > 0 && box_inside(fault, target));
        int holders = 0; // the region named is held by none, or by several
        for (int i = 0; i < count; i++) {
            int64_t shared = box_elements(box_intersect(copy[i], fault));
            CHECK(found == COVER_TWICE || shared == 0);
            holders += shared > 0;
        }
        CHECK(found == COVER_HOLE || holders > 1);
    }
    CHECK(faults[COVER_EXACT] > 500 && faults[COVER_HOLE] > 300 && faults[COVER_TWICE] > 300);
}

TEST(ranges_of_elements_are_at_most_three_boxes) {
    unsigned state = 9;
    for (int round = 0; round < 2000; round++) {
        struct box whole = {3, 1 + random_below(&state, 9), 2, 1 + random_below(&state, 9)};
        int64_t first = random_below(&state, box_elements(whole)), at = first;
        int64_t length = random_below(&state, box_elements(whole) - first + 1);
        struct box out[3];
        int count = box_range(whole, first, length, out);
        CHECK(count <= 3);
        for (int i = 0; i < count; i++) {
            CHECK(box_inside(out[i], whole));
            CHECK_EQ_INT((out[i].row - 3) * whole.columns + out[i].column - 2, at);
            CHECK(out[i].rows == 1 || out[i].columns == whole.columns);
            at += box_elements(out[i]);
        }
        CHECK_EQ_INT(at, first + length);
    }
}

TEST(names_of_pieces_are_read_back_and_others_refused) {
    struct tensor t = {.name = "embedding.weight", .dims = 2, .shape = {40, 8}};
    struct box b = {0, 40, 0, 8}, back;
    char name[TENSOR_NAME_BYTES];
    bool has_box;
    struct err err = {0};
    CHECK_OK(piece_name(&t, b, name, &err), err);
    CHECK_STR(name, "embedding.weight");
    CHECK_EQ_INT(piece_parse(name, &has_box, &back), 16);
    CHECK(!has_box);
    b = (struct box){12, 3, 4, 2};
    CHECK_OK(piece_name(&t, b, name, &err), err);
    CHECK_STR(name, "embedding.weight@12:15,4:6");
    CHECK_EQ_INT(piece_parse(name, &has_box, &back), 16);
    CHECK(has_box && box_same(b, back));
    t.dims = 1;
    CHECK_OK(piece_name(&t, (struct box){12, 3, 0, 1}, name, &err), err);
    CHECK_STR(name, "embedding.weight@12:15");
    static const char *const bad[] = {
        "a@",       "a@1",    "a@1:",   "a@:2",          "a@2:1",  "a@1:2,",
        "a@1:2,3",  "a@-1:2", "a@1:2x", "a@1:2,3:4,5:6", "a@ 1:2", "a@1:99999999999999999999",
        "a@1:2,4:3"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_EQ_INT(piece_parse(bad[i], &has_box, &back), -1);
    memset(t.name, 'n', sizeof t.name - 1);
    CHECK(piece_name(&t, (struct box){12, 3, 0, 1}, name, &err) != 0);
    CHECK_CONTAINS(err.text, "leaves no room");
}

TEST(shares_of_copies_tile_their_piece_evenly) {
    static struct box all[3 * 64];
    unsigned state = 11;
    for (int round = 0; round < 600; round++) {
        struct tensor_slice s = {.type = round % 2 ? DTYPE_F32 : DTYPE_BF16,
                                 .row = random_below(&state, 50),
                                 .rows = 1 + random_below(&state, round % 3 ? 20 : 900),
                                 .column = random_below(&state, 50),
                                 .columns = 1 + random_below(&state, round % 5 ? 700 : 2),
                                 .copies = 1 + (int)random_below(&state, 64)};
        struct box whole = box_of_slice(&s), fault;
        snprintf(s.name, sizeof s.name, "layers.%d.weight", round);
        int used = 0;
        int64_t most = 0;
        for (s.copy = 0; s.copy < s.copies; s.copy++) {
            struct box share[3];
            int64_t elements = 0;
            int count = piece_share(&s, share);
            CHECK(count <= 3);
            for (int i = 0; i < count; i++) elements += box_elements(all[used++] = share[i]);
            most = elements > most ? elements : most;
        }
        CHECK_EQ_INT(box_cover(all, used, whole, &fault), COVER_EXACT);
        // nobody writes much more than its share, or than what is not worth dividing
        double even = (double)box_elements(whole) / s.copies,
               least = 2 * 4096.0 / (double)dtype_bytes(s.type);
        CHECK((double)most <= 1.07 * even + 1 || (double)most <= least);
    }
}

// Too small to be divided: whole pieces, dealt out by name.
TEST(small_pieces_do_not_all_fall_to_one_copy) {
    int written[4] = {0};
    for (int i = 0; i < 80; i++)
        for (int copy = 0; copy < 4; copy++) {
            struct tensor_slice s = {.rows = 64, .columns = 1, .copy = copy, .copies = 4};
            struct box share[3];
            snprintf(s.name, sizeof s.name, "layers.%d.norm.weight", i);
            int count = piece_share(&s, share);
            CHECK(count == 0 || box_same(share[0], box_of_slice(&s)));
            written[copy] += count;
        }
    CHECK_EQ_INT(written[0] + written[1] + written[2] + written[3], 80);
    for (int copy = 0; copy < 4; copy++) CHECK(written[copy] >= 10);
}
