// Candidates and nodes with the least bound first; of equal ones that which came first.
#include "plan/search_parts.h"
#include <stdlib.h>

static bool before(const struct search_item *a, const struct search_item *b) {
    if (a->bound_seconds != b->bound_seconds) return a->bound_seconds < b->bound_seconds;
    return a->place < b->place;
}

int search_heap_put(struct search_heap *h, const struct search_item *item, struct err *err) {
    if (h->count == h->capacity) {
        int64_t capacity = h->capacity ? 2 * h->capacity : 1024;
        struct search_item *items = realloc(h->items, (size_t)capacity * sizeof *items);
        if (!items) return err_set(err, ERR_MEMORY, "no memory for the candidates of the search");
        h->items = items;
        h->capacity = capacity;
    }
    int64_t at = h->count++;
    h->items[at] = *item;
    h->items[at].place = h->placed++;
    for (; at > 0 && before(&h->items[at], &h->items[(at - 1) / 2]); at = (at - 1) / 2) {
        struct search_item swap = h->items[at];
        h->items[at] = h->items[(at - 1) / 2];
        h->items[(at - 1) / 2] = swap;
    }
    return 0;
}

bool search_heap_take(struct search_heap *h, struct search_item *out) {
    if (h->count == 0) return false;
    *out = h->items[0];
    struct search_item last = h->items[--h->count];
    int64_t at = 0;
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child + 1 < h->count && before(&h->items[child + 1], &h->items[child])) child++;
        if (child >= h->count || !before(&h->items[child], &last)) break;
        h->items[at] = h->items[child];
        at = child;
    }
    if (h->count > 0) h->items[at] = last;
    return true;
}

void search_heap_free(struct search_heap *h) {
    free(h->items);
    *h = (struct search_heap){0};
}
