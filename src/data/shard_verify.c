// Looking at every byte of a shard: hash, index, ids, ends and beginnings of documents; see
// shard.h.
#include "base/hash.h"
#include "data/shard.h"

// The first document whose borders cannot be right, by index alone or by the id that should end it.
static int verify_documents(const struct shard *shard, int32_t eod, int32_t bos,
                            struct shard_report *report, struct err *err) {
    const struct shard_info *info = &shard->info;
    for (uint64_t d = 0; d < info->documents; d++) {
        uint64_t begin, end;
        if (shard_document(shard, d, &begin, &end, err) != 0) return -1;
        for (uint64_t i = begin; i < end; i++) {
            uint32_t id = shard_id(shard, i);
            if (id > report->largest_id) report->largest_id = id;
            if (info->vocab_size && id >= info->vocab_size)
                return err_set(err, ERR_DATA,
                               "%s: document %llu: token %llu is id %u, the vocabulary has %llu",
                               shard->path, (unsigned long long)d, (unsigned long long)i, id,
                               (unsigned long long)info->vocab_size);
        }
        if (eod >= 0 && (end == begin || shard_id(shard, end - 1) != (uint32_t)eod))
            return err_set(
                err, ERR_DATA,
                "%s: document %llu (tokens %llu to %llu) does not end in id %d: its size "
                "is off, or it was written without the separator",
                shard->path, (unsigned long long)d, (unsigned long long)begin,
                (unsigned long long)end, eod);
        if (bos >= 0 && end - begin >= 2 && shard_id(shard, begin) == (uint32_t)bos &&
            shard_id(shard, begin + 1) == (uint32_t)bos && report->doubled_bos++ == 0)
            report->first_doubled_bos = d;
    }
    return 0;
}

int shard_verify(const char *path, int32_t eod, int32_t bos, struct shard_report *report,
                 struct err *err) {
    struct shard shard;
    *report = (struct shard_report){.largest_id = 0};
    if (shard_open(&shard, path, NULL, err) != 0) return -1;
    if (eod < 0 && shard.info.ends_with_eod) eod = shard.info.eod;
    if (bos < 0) bos = shard.info.bos;
    // Documents before the hash: their message says more.
    int result = verify_documents(&shard, eod, bos, report, err);
    if (result == 0 && shard.info.kind == SHARD_WEFT) {
        uint64_t found =
            hash_bytes(shard.map.data + SHARD_HEADER_BYTES, shard.map.size - SHARD_HEADER_BYTES);
        if (found != shard.info.content_hash)
            result = err_set(err, ERR_DATA,
                             "%s: its content has hash %016llx, the header says %016llx; the shard "
                             "is damaged, prepare or copy it again",
                             shard.path, (unsigned long long)found,
                             (unsigned long long)shard.info.content_hash);
    }
    shard_close(&shard);
    return result;
}
