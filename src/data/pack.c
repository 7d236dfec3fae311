// Best-fit packing, see pack.h. Room in open rows is kept as one list per number of free positions,
// with a bitmap of the lists that are not empty: the tightest row is found by looking for the next
// set bit.
#include "data/pack.h"
#include <stdlib.h>
#include <string.h>

enum { NONE = UINT32_MAX };

struct window { // one window of pieces while it is packed
    uint32_t context;
    struct pack_piece *piece; // [PACK_WINDOW] in file order
    uint32_t count;
    uint32_t *sorted;     // [PACK_WINDOW] pieces, longest first
    uint32_t *row_of;     // [PACK_WINDOW]
    uint32_t *next;       // [PACK_WINDOW] rows of equal room
    uint32_t *head;       // [context + 1] first row by room
    uint32_t *starts;     // [context + 2] counting sort
    uint32_t *renumber;   // [PACK_WINDOW] row -> row in file order
    uint64_t *bits;       // rooms that some row has
    uint64_t *bits_above; // words of `bits` that are not zero
    uint32_t rows;
};

static void window_close(struct window *w) {
    void *all[] = {w->piece,  w->sorted,   w->row_of, w->next,      w->head,
                   w->starts, w->renumber, w->bits,   w->bits_above};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

static int window_open(struct window *w, uint32_t context, struct err *err) {
    size_t words = context / 64 + 1;
    *w = (struct window){.context = context};
    w->piece = malloc(PACK_WINDOW * sizeof *w->piece);
    w->sorted = calloc(PACK_WINDOW, sizeof *w->sorted);
    w->row_of = malloc(PACK_WINDOW * sizeof *w->row_of);
    w->next = malloc(PACK_WINDOW * sizeof *w->next);
    w->renumber = malloc(PACK_WINDOW * sizeof *w->renumber);
    w->head = malloc((context + (size_t)1) * sizeof *w->head);
    w->starts = malloc((context + (size_t)2) * sizeof *w->starts);
    w->bits = calloc(words, sizeof *w->bits);
    w->bits_above = calloc(words / 64 + 1, sizeof *w->bits_above);
    if (w->piece && w->sorted && w->row_of && w->next && w->renumber && w->head && w->starts &&
        w->bits && w->bits_above)
        return 0;
    window_close(w);
    return err_set(err, ERR_MEMORY, "no memory for packing rows of %u tokens", context);
}

static void push_row(struct window *w, uint32_t room, uint32_t row) {
    w->next[row] = w->head[room];
    w->head[room] = row;
    w->bits[room / 64] |= (uint64_t)1 << room % 64;
    w->bits_above[room / 4096] |= (uint64_t)1 << room / 64 % 64;
}

static uint32_t pop_row(struct window *w, uint32_t room) {
    uint32_t row = w->head[room];
    w->head[room] = w->next[row];
    if (w->head[room] == NONE) {
        w->bits[room / 64] &= ~((uint64_t)1 << room % 64);
        if (w->bits[room / 64] == 0) w->bits_above[room / 4096] &= ~((uint64_t)1 << room / 64 % 64);
    }
    return row;
}

// Smallest room >= length that a row has, or NONE.
static uint32_t tightest(const struct window *w, uint32_t length) {
    uint64_t word = w->bits[length / 64] >> length % 64;
    if (word) return length + (uint32_t)__builtin_ctzll(word);
    uint32_t words = w->context / 64 + 1, from = length / 64 + 1;
    if (from >= words) return NONE;
    uint32_t above = from / 64;
    word = w->bits_above[above] >> from % 64 << from % 64;
    while (word == 0) {
        if (++above > words / 64) return NONE;
        word = w->bits_above[above];
    }
    uint32_t found = above * 64 + (uint32_t)__builtin_ctzll(word);
    return found * 64 + (uint32_t)__builtin_ctzll(w->bits[found]);
}

// Longest first, equal lengths in file order.
static void sort_pieces(struct window *w) {
    memset(w->starts, 0, (w->context + (size_t)2) * sizeof *w->starts);
    for (uint32_t i = 0; i < w->count; i++) w->starts[w->context - pack_length(&w->piece[i]) + 1]++;
    for (uint32_t i = 0; i <= w->context; i++) w->starts[i + 1] += w->starts[i];
    for (uint32_t i = 0; i < w->count; i++)
        w->sorted[w->starts[w->context - pack_length(&w->piece[i])]++] = i;
}

static void assign_rows(struct window *w) {
    memset(w->head, 0xff, (w->context + (size_t)1) * sizeof *w->head);
    w->rows = 0;
    for (uint32_t i = 0; i < w->count; i++) {
        uint32_t piece = w->sorted[i], length = pack_length(&w->piece[piece]);
        uint32_t room = tightest(w, length);
        uint32_t row = room == NONE ? w->rows++ : pop_row(w, room);
        uint32_t left = (room == NONE ? w->context : room) - length;
        w->row_of[piece] = row;
        if (left >= 2) push_row(w, left, row); // no piece is shorter
    }
    for (uint32_t room = 0; room <= w->context; room++)
        while (w->head[room] != NONE) pop_row(w, room);
}

static int reserve(struct pack_plan *plan, uint64_t rows, uint64_t pieces, struct err *err) {
    if (plan->rows + rows + 1 > plan->row_capacity) {
        uint64_t capacity = 2 * plan->row_capacity + rows + 1;
        uint64_t *grown = realloc(plan->first, capacity * sizeof *grown);
        if (!grown) goto short_of_memory;
        plan->first = grown;
        plan->row_capacity = capacity;
    }
    if (plan->pieces + pieces > plan->piece_capacity) {
        uint64_t capacity = 2 * plan->piece_capacity + pieces;
        struct pack_piece *grown = realloc(plan->piece, capacity * sizeof *grown);
        if (!grown) goto short_of_memory;
        plan->piece = grown;
        plan->piece_capacity = capacity;
    }
    return 0;
short_of_memory:
    return err_set(err, ERR_MEMORY,
                   "no memory for packing: %llu pieces of 12 bytes in %llu rows; use the mode that "
                   "cuts into chunks",
                   (unsigned long long)(plan->pieces + pieces),
                   (unsigned long long)(plan->rows + rows));
}

// Packs the window; rows are numbered by their first piece, pieces of a row stand in file order.
static int flush_window(struct pack_plan *plan, struct window *w, struct err *err) {
    if (w->count == 0) return 0;
    sort_pieces(w);
    assign_rows(w);
    if (reserve(plan, w->rows, w->count, err) != 0) return -1;
    memset(w->renumber, 0xff, w->rows * sizeof *w->renumber);
    uint64_t *first = plan->first + plan->rows;
    memset(first + 1, 0, w->rows * sizeof *first);
    uint32_t rows = 0;
    for (uint32_t i = 0; i < w->count; i++) {
        uint32_t *row = &w->renumber[w->row_of[i]];
        if (*row == NONE) *row = rows++;
        w->row_of[i] = *row;
        if (*row + 1 < w->rows) first[*row + 1]++;
    }
    // first[r + 1] holds the count of row r: summed up to starts
    first[0] = plan->pieces;
    for (uint32_t r = 1; r < w->rows; r++) first[r] += first[r - 1];
    uint32_t *cursor = w->next;
    memset(cursor, 0, w->rows * sizeof *cursor);
    for (uint32_t i = 0; i < w->count; i++) {
        uint32_t row = w->row_of[i];
        plan->piece[first[row] + cursor[row]++] = w->piece[i];
    }
    plan->pieces += w->count;
    plan->rows += w->rows;
    plan->first[plan->rows] = plan->pieces;
    w->count = 0;
    return 0;
}

static int add_piece(struct pack_plan *plan, struct window *w, uint64_t token, uint32_t length,
                     uint32_t continues, struct err *err) {
    if (length == 1 && !continues) {
        plan->left_out++;
        return 0;
    }
    if (w->count == PACK_WINDOW && flush_window(plan, w, err) != 0) return -1;
    w->piece[w->count++] = (struct pack_piece){.token_low = (uint32_t)token,
                                               .token_high = (uint32_t)(token >> 32),
                                               .length = length | continues};
    plan->tokens += length;
    return 0;
}

static int add_document(struct pack_plan *plan, struct window *w, uint64_t begin, uint64_t end,
                        struct err *err) {
    if (end - begin > plan->context) plan->cut_documents++;
    while (end - begin > plan->context) {
        if (add_piece(plan, w, begin, plan->context, PACK_CONTINUES, err) != 0) return -1;
        begin += plan->context;
    }
    return end > begin ? add_piece(plan, w, begin, (uint32_t)(end - begin), 0, err) : 0;
}

int pack_open(struct pack_plan *plan, uint32_t context, struct err *err) {
    *plan = (struct pack_plan){.context = context};
    if (context < 2 || context > 1u << 28)
        return err_set(err, ERR_USAGE, "context %u: packing needs 2 to %u positions", context,
                       1u << 28);
    if (reserve(plan, 0, 0, err) != 0) return -1;
    plan->first[0] = 0;
    return 0;
}

int pack_add(struct pack_plan *plan, const struct shard *shard, struct err *err) {
    struct window w;
    if (window_open(&w, plan->context, err) != 0) return -1;
    int result = 0;
    for (uint64_t d = 0; d < shard->info.documents && result == 0; d++) {
        uint64_t begin, end;
        result = shard_document(shard, d, &begin, &end, err);
        if (result == 0) result = add_document(plan, &w, begin, end, err);
    }
    if (result == 0) result = flush_window(plan, &w, err);
    window_close(&w);
    return result;
}

void pack_close(struct pack_plan *plan) {
    free(plan->first);
    free(plan->piece);
    *plan = (struct pack_plan){.rows = 0};
}
