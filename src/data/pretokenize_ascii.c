// Class bits of ASCII bytes: portable C, AVX2 and AVX-512 versions of one function, chosen at run
// time.
#include "data/pretokenize_ascii.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

static void ascii_portable(const unsigned char *text, size_t blocks, const struct ascii_masks *m) {
    for (size_t b = 0; b < blocks; b++) {
        uint64_t letter = 0, number = 0, space = 0, blank = 0, newline = 0, quote = 0, high = 0;
        for (int i = 0; i < 64; i++) {
            unsigned char c = text[b * 64 + (size_t)i];
            letter |= (uint64_t)((unsigned char)((c | 0x20) - 'a') < 26) << i;
            number |= (uint64_t)((unsigned char)(c - '0') < 10) << i;
            space |= (uint64_t)((unsigned char)(c - 9) < 5 || c == ' ') << i;
            blank |= (uint64_t)(c == ' ') << i;
            newline |= (uint64_t)(c == '\n' || c == '\r') << i;
            quote |= (uint64_t)(c == '\'') << i;
            high |= (uint64_t)(c >> 7) << i;
        }
        m->letter[b] = letter, m->number[b] = number, m->space[b] = space, m->blank[b] = blank;
        m->newline[b] = newline, m->quote[b] = quote, m->high[b] = high;
    }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static uint64_t join(__m256i low, __m256i high) {
    return (uint32_t)_mm256_movemask_epi8(low) | (uint64_t)(uint32_t)_mm256_movemask_epi8(high)
                                                     << 32;
}

// Bytes in first..first+span as 0xFF.
__attribute__((target("avx2"))) static __m256i in_range(__m256i v, char first, char span) {
    __m256i d = _mm256_sub_epi8(v, _mm256_set1_epi8(first));
    return _mm256_cmpeq_epi8(_mm256_min_epu8(d, _mm256_set1_epi8(span)), d);
}

__attribute__((target("avx2"))) static void ascii_avx2(const unsigned char *text, size_t blocks,
                                                       const struct ascii_masks *m) {
    const __m256i bit5 = _mm256_set1_epi8(0x20);
    for (size_t b = 0; b < blocks; b++) {
        __m256i v0 = _mm256_loadu_si256((const __m256i *)(text + b * 64));
        __m256i v1 = _mm256_loadu_si256((const __m256i *)(text + b * 64 + 32));
        m->letter[b] = join(in_range(_mm256_or_si256(v0, bit5), 'a', 25),
                            in_range(_mm256_or_si256(v1, bit5), 'a', 25));
        m->number[b] = join(in_range(v0, '0', 9), in_range(v1, '0', 9));
        uint64_t blank = join(_mm256_cmpeq_epi8(v0, bit5), _mm256_cmpeq_epi8(v1, bit5));
        m->blank[b] = blank;
        m->space[b] = blank | join(in_range(v0, 9, 4), in_range(v1, 9, 4));
        const __m256i lf = _mm256_set1_epi8('\n'), cr = _mm256_set1_epi8('\r');
        m->newline[b] = join(_mm256_or_si256(_mm256_cmpeq_epi8(v0, lf), _mm256_cmpeq_epi8(v0, cr)),
                             _mm256_or_si256(_mm256_cmpeq_epi8(v1, lf), _mm256_cmpeq_epi8(v1, cr)));
        const __m256i quote = _mm256_set1_epi8('\'');
        m->quote[b] = join(_mm256_cmpeq_epi8(v0, quote), _mm256_cmpeq_epi8(v1, quote));
        m->high[b] = join(v0, v1);
    }
}

__attribute__((target("avx512f,avx512bw"))) static void
ascii_avx512(const unsigned char *text, size_t blocks, const struct ascii_masks *m) {
    const __m512i bit5 = _mm512_set1_epi8(0x20);
    for (size_t b = 0; b < blocks; b++) {
        __m512i v = _mm512_loadu_si512(text + b * 64);
        __m512i lower = _mm512_sub_epi8(_mm512_or_si512(v, bit5), _mm512_set1_epi8('a'));
        m->letter[b] = _mm512_cmplt_epu8_mask(lower, _mm512_set1_epi8(26));
        __m512i digit = _mm512_sub_epi8(v, _mm512_set1_epi8('0'));
        m->number[b] = _mm512_cmplt_epu8_mask(digit, _mm512_set1_epi8(10));
        uint64_t blank = _mm512_cmpeq_epi8_mask(v, bit5);
        m->blank[b] = blank;
        __m512i control = _mm512_sub_epi8(v, _mm512_set1_epi8(9));
        m->space[b] = blank | _mm512_cmplt_epu8_mask(control, _mm512_set1_epi8(5));
        m->newline[b] = _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8('\n')) |
                        _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8('\r'));
        m->quote[b] = _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8('\''));
        m->high[b] = _mm512_movepi8_mask(v);
    }
}
#endif

int pretokenize_ascii_version(int version, const unsigned char *text, size_t blocks,
                              const struct ascii_masks *masks) {
    if (version == 0) {
        ascii_portable(text, blocks, masks);
        return 0;
    }
#if defined(__x86_64__)
    if (version == 1 && __builtin_cpu_supports("avx2")) {
        ascii_avx2(text, blocks, masks);
        return 0;
    }
    if (version == 2 && __builtin_cpu_supports("avx512bw")) {
        ascii_avx512(text, blocks, masks);
        return 0;
    }
#endif
    return -1;
}

void pretokenize_ascii(const unsigned char *text, size_t blocks, const struct ascii_masks *masks) {
    for (int version = 2; version >= 0; version--)
        if (pretokenize_ascii_version(version, text, blocks, masks) == 0) return;
}
