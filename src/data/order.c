// Orders of drawing, see order.h.
#include "data/order.h"
#include "base/random.h"
#include <stdlib.h>

int order_space_open(struct order_space *space, const struct order *order, struct err *err) {
    *space = (struct order_space){.epoch = UINT64_MAX};
    space->shard = malloc(order->shards * sizeof *space->shard);
    space->place = malloc((order->shards + (size_t)1) * sizeof *space->place);
    if (space->shard && space->place) return 0;
    order_space_close(space);
    return err_set(err, ERR_MEMORY, "no memory for the order of %u shards", order->shards);
}

void order_space_close(struct order_space *space) {
    free(space->shard);
    free(space->place);
    space->shard = NULL;
    space->place = NULL;
}

// Largest i with first[i] <= value.
static uint32_t find(const uint64_t *first, uint32_t count, uint64_t value) {
    uint32_t low = 0, high = count;
    while (low + 1 < high) {
        uint32_t middle = low + (high - low) / 2;
        if (first[middle] <= value)
            low = middle;
        else
            high = middle;
    }
    return low;
}

uint32_t order_shard_of(const struct order *order, uint64_t sample) {
    return find(order->first, order->shards, sample);
}

static uint64_t epoch_key(const struct order *order, uint64_t epoch) {
    uint32_t words[4];
    random_words(order->key, epoch, words);
    return (uint64_t)words[0] << 32 | words[1];
}

static void arrange_shards(const struct order *order, struct order_space *space, uint64_t epoch) {
    uint64_t key = epoch_key(order, epoch), place = 0;
    for (uint32_t i = 0; i < order->shards; i++) {
        uint32_t shard = (uint32_t)random_permute(key, i, order->shards);
        space->shard[i] = shard;
        space->place[i] = place;
        place += order->first[shard + 1] - order->first[shard];
    }
    space->place[order->shards] = place;
    space->epoch = epoch;
}

static uint64_t sample_in_shards(const struct order *order, struct order_space *space,
                                 uint64_t epoch, uint64_t place, uint32_t *next_shard) {
    if (space->epoch != epoch) arrange_shards(order, space, epoch);
    uint32_t turn = find(space->place, order->shards, place);
    uint32_t shard = space->shard[turn];
    *next_shard = space->shard[turn + 1 < order->shards ? turn + 1 : turn];
    uint64_t size = order->first[shard + 1] - order->first[shard];
    uint64_t local = place - space->place[turn], begin = local - local % order->window;
    uint64_t width = size - begin < order->window ? size - begin : order->window;
    uint32_t words[4];
    random_words(epoch_key(order, epoch) ^ shard, begin, words);
    uint64_t key = (uint64_t)words[2] << 32 | words[3];
    return order->first[shard] + begin + random_permute(key, local - begin, width);
}

uint64_t order_sample(const struct order *order, struct order_space *space, uint64_t epoch,
                      uint64_t place, uint32_t *next_shard) {
    if (order->shuffle == SHUFFLE_SHARD)
        return sample_in_shards(order, space, epoch, place, next_shard);
    uint64_t count = order->first[order->shards];
    uint64_t sample = order->shuffle == SHUFFLE_SAMPLE
                          ? random_permute(epoch_key(order, epoch), place, count)
                          : place;
    uint32_t shard = order_shard_of(order, sample);
    *next_shard = shard + 1 < order->shards ? shard + 1 : shard;
    return sample;
}
