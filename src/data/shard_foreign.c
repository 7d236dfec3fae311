// Shards that other programs wrote: Megatron .bin/.idx, llm.c .bin, bare u16 (nanoGPT); see
// shard.h.
#include "data/megatron.h"
#include "data/shard.h"
#include <stdlib.h>
#include <string.h>

static uint64_t get64(const unsigned char *at) {
    uint64_t value;
    memcpy(&value, at, 8);
    return value;
}

static int32_t get32(const unsigned char *at) {
    int32_t value;
    memcpy(&value, at, 4);
    return value;
}

// --- Megatron ---

static int megatron_width(const struct shard *shard, unsigned code, struct err *err) {
    if (code == MEGATRON_U16) return 2;
    if (code == MEGATRON_I32) return 4;
    return err_set(err, ERR_DATA, "%s: index with type code %u; weft reads 8 (u16) and 4 (i32)",
                   shard->path, code);
}

// Starts of documents from sizes and document borders; sizes and pointers must agree with each
// other and with the file.
static int megatron_starts(struct shard *shard, uint64_t sequences, uint64_t borders,
                           struct err *err) {
    const unsigned char *sizes = shard->index_map.data + MEGATRON_HEADER_BYTES;
    const unsigned char *pointers = sizes + 4 * sequences, *documents = pointers + 8 * sequences;
    uint64_t width = shard->info.token_bytes, *starts = malloc(borders * sizeof *starts);
    if (!starts)
        return err_set(err, ERR_MEMORY, "%s: no memory for %llu documents", shard->path,
                       (unsigned long long)borders - 1);
    shard->built_starts = starts;
    uint64_t token = 0, document = 0;
    for (uint64_t i = 0; i <= sequences; i++) {
        uint64_t before = document ? document - 1 : 0; // document of sequence i - 1
        while (document < borders && get64(documents + 8 * document) == i)
            starts[document++] = token;
        if (i == sequences) break;
        int32_t size = get32(sizes + 4 * i);
        uint64_t at = get64(pointers + 8 * i);
        if (size < 0 || at != token * width)
            return err_set(
                err, ERR_DATA,
                "%s: document %llu: its size puts the next sequence (%llu) at byte %llu, the "
                "pointer there says %llu; one of the two is off",
                shard->path, (unsigned long long)before, (unsigned long long)i,
                (unsigned long long)(token * width), (unsigned long long)at);
        token += (uint64_t)size;
        // Checked inside the loop, so that a sum of hostile sizes cannot run over.
        if (token > shard->info.tokens) break;
    }
    uint64_t last = document > shard->info.documents ? shard->info.documents : document;
    if (document != borders || starts[0] != 0 || token != shard->info.tokens ||
        starts[borders - 1] != token)
        return err_set(err, ERR_DATA,
                       "%s: document %llu: the sizes up to here amount to %llu tokens, the file "
                       "holds %llu",
                       shard->path, (unsigned long long)(last ? last - 1 : 0),
                       (unsigned long long)token, (unsigned long long)shard->info.tokens);
    shard->starts = starts;
    return 0;
}

int shard_open_megatron(struct shard *shard, struct err *err) {
    const unsigned char *h = shard->index_map.data;
    uint64_t size = shard->index_map.size;
    if (size < MEGATRON_HEADER_BYTES || memcmp(h, MEGATRON_MAGIC, 9) != 0)
        return err_set(err, ERR_DATA,
                       "%s: the .idx file beside it is no Megatron index (it does not begin with "
                       "MMIDIDX)",
                       shard->path);
    if (get64(h + 9) != 1)
        return err_set(err, ERR_DATA, "%s: index of version %llu, weft reads version 1",
                       shard->path, (unsigned long long)get64(h + 9));
    int width = megatron_width(shard, h[17], err);
    if (width < 0) return -1;
    uint64_t sequences = get64(h + 18), borders = get64(h + 26);
    uint64_t room = size - MEGATRON_HEADER_BYTES;
    if (sequences > room / 12 || borders < 1 || borders > room / 8 ||
        sequences * 12 + borders * 8 != room)
        return err_set(err, ERR_DATA,
                       "%s: its index announces %llu sequences and %llu document borders, which do "
                       "not fit the %llu bytes of the .idx file; it is cut or damaged",
                       shard->path, (unsigned long long)sequences, (unsigned long long)borders,
                       (unsigned long long)size);
    if (shard->map.size % (uint64_t)width)
        return err_set(err, ERR_DATA, "%s: %zu bytes are no whole number of %d-byte ids; it is cut",
                       shard->path, shard->map.size, width);
    shard->info = (struct shard_info){.kind = SHARD_MEGATRON,
                                      .token_bytes = (unsigned)width,
                                      .tokens = shard->map.size / (uint64_t)width,
                                      .documents = borders - 1,
                                      .eod = -1,
                                      .bos = -1};
    shard->ids = shard->map.data;
    return megatron_starts(shard, sequences, borders, err);
}

// --- llm.c and bare ids ---

enum { LLMC_U16 = 20240520, LLMC_U32 = 20240801, LLMC_HEADER_BYTES = 1024 };

static int plain_header(struct shard *shard, unsigned *width, uint64_t *header, struct err *err) {
    uint64_t size = shard->map.size;
    int32_t magic = size >= 4 ? get32(shard->map.data) : 0;
    *width = magic == LLMC_U32 ? 4 : 2;
    *header = 0;
    if (magic != LLMC_U16 && magic != LLMC_U32) {
        shard->info.kind = SHARD_BARE;
        if (size % 2 == 0) return 0;
        return err_set(err, ERR_DATA,
                       "%s: neither a known shard nor bare 16-bit ids (%llu bytes, an odd number)",
                       shard->path, (unsigned long long)size);
    }
    shard->info.kind = SHARD_LLMC;
    *header = LLMC_HEADER_BYTES;
    if (size < LLMC_HEADER_BYTES)
        return err_set(err, ERR_DATA, "%s: cut inside the llm.c header (%llu of %d bytes)",
                       shard->path, (unsigned long long)size, LLMC_HEADER_BYTES);
    int32_t version = get32(shard->map.data + 4), expected = magic == LLMC_U32 ? 7 : 1;
    if (version != expected)
        return err_set(err, ERR_DATA, "%s: llm.c data of version %d, expected %d", shard->path,
                       version, expected);
    uint64_t tokens = (uint32_t)get32(shard->map.data + 8);
    if (tokens * *width + LLMC_HEADER_BYTES != size)
        return err_set(err, ERR_DATA,
                       "%s: the llm.c header announces %llu tokens of %u bytes, the file has %llu "
                       "bytes behind the header; it is cut or damaged",
                       shard->path, (unsigned long long)tokens, *width,
                       (unsigned long long)size - LLMC_HEADER_BYTES);
    return 0;
}

int shard_open_plain(struct shard *shard, struct err *err) {
    unsigned width;
    uint64_t header;
    shard->info = (struct shard_info){.documents = 1, .eod = -1, .bos = -1};
    if (plain_header(shard, &width, &header, err) != 0) return -1;
    shard->info.token_bytes = width;
    shard->info.tokens = (shard->map.size - header) / width;
    if (shard->info.tokens == 0) return err_set(err, ERR_DATA, "%s: holds no tokens", shard->path);
    shard->built_starts = malloc(2 * sizeof *shard->built_starts);
    if (!shard->built_starts)
        return err_set(err, ERR_MEMORY, "%s: no memory for its index", shard->path);
    shard->built_starts[0] = 0;
    shard->built_starts[1] = shard->info.tokens;
    shard->starts = shard->built_starts;
    shard->ids = shard->map.data + header;
    return 0;
}
