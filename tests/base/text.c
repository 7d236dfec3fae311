// Growing buffers, nearest names, quantities, UTF-8.
#include "base/text.h"
#include "test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TEST(text_grows) {
    struct text t = {0};
    char expected[3000] = "";
    for (int i = 0; i < 200; i++) {
        char word[20];
        snprintf(word, sizeof word, "%d,", i);
        strcat(expected, word);
        CHECK_EQ_INT(i % 2 ? text_printf(&t, "%d,", i) : text_puts(&t, word), 0);
    }
    CHECK_STR(t.data, expected);
    CHECK_EQ_INT(t.size, strlen(expected));
    CHECK_EQ_INT(text_put(&t, "\0x", 2), 0); // bytes, not strings
    CHECK_EQ_INT(t.data[t.size - 1], 'x');
    CHECK_EQ_INT(text_put(&t, "", 0), 0);
    CHECK_EQ_INT(text_put(&t, "x", SIZE_MAX / 2), -1);
    text_free(&t);
    CHECK(t.data == NULL && t.size == 0);
}

TEST(text_distances) {
    CHECK_EQ_INT(text_distance("", ""), 0);
    CHECK_EQ_INT(text_distance("abc", ""), 3);
    CHECK_EQ_INT(text_distance("kitten", "sitting"), 3);
    CHECK_EQ_INT(text_distance("ab", "ba"), 1);
    CHECK_EQ_INT(text_distance("Layers", "layers"), 0);
    CHECK_EQ_INT(text_distance("model.layres", "model.layers"), 1);
    char a[300], b[300];
    memset(a, 'a', 299), memset(b, 'b', 299);
    a[299] = b[299] = 0;
    CHECK_EQ_INT(text_distance(a, b), 127); // longer names count up to there
}

TEST(text_ends) {
    CHECK(text_ends_with("a.weft", ".weft"));
    CHECK(text_ends_with("a", ""));
    CHECK(text_ends_with("", ""));
    CHECK(!text_ends_with("weft", ".weft"));
    CHECK(!text_ends_with("a.weft.tmp", ".weft"));
}

TEST(text_nearest_names) {
    static const char *const names[] = {"train.steps", "train.seed", "model.layers", "x"};
    CHECK_STR(text_nearest("train.step", names, 4), "train.steps");
    CHECK_STR(text_nearest("train.sede", names, 4), "train.seed");
    CHECK_STR(text_nearest("MODEL.LAYERS", names, 4), "model.layers");
    CHECK(text_nearest("something.else", names, 4) == NULL);
    static const char *const longer[] = {"v100", "h100-sxm", "h100-pcie", "memory_bandwidth",
                                         "memory_bytes"};
    CHECK_STR(text_nearest("h100", longer, 5), "h100-sxm");
    CHECK_STR(text_nearest("memory", longer, 5), "memory_bytes");
    CHECK_STR(text_nearest("v100", longer, 5), "v100");
    CHECK(text_nearest("mem", longer, 5) == NULL); // no whole word
    CHECK(text_nearest("", names, 4) == NULL);
    CHECK(text_nearest("y", names, 4) == NULL);
    CHECK(text_nearest("x", names, 0) == NULL);
}

TEST(text_quantities) {
    char out[32];
    static const struct {
        uint64_t bytes;
        const char *text;
    } sizes[] = {
        {0, "0 B"},          {999, "999 B"},         {1000, "1.00 kB"}, {1740000000, "1.74 GB"},
        {9994, "9.99 kB"},   {9996, "10.0 kB"},      {99960, "100 kB"}, {999499, "999 kB"},
        {999500, "1.00 MB"}, {UINT64_MAX, "18.4 EB"}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        CHECK_STR(text_bytes(sizes[i].bytes, out), sizes[i].text);
    static const struct {
        double seconds;
        const char *text;
    } times[] = {{0, "0.00 s"},       {5.25, "5.25 s"},    {9.999, "10 s"},
                 {59.6, "1 min 0 s"}, {725, "12 min 5 s"}, {3600, "1 h 0 min"},
                 {90061, "1 d 1 h"},  {-1, "unknown"},     {1e300, "unknown"}};
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++)
        CHECK_STR(text_duration(times[i].seconds, out), times[i].text);
    CHECK_STR(text_duration(0.0 / (double)(out[0] == 1), out), "unknown");
    CHECK_STR(text_count(0, out), "0");
    CHECK_STR(text_count(999, out), "999");
    CHECK_STR(text_count(5034, out), "5,034");
    CHECK_STR(text_count(-1234567, out), "-1,234,567");
    CHECK_STR(text_count(INT64_MIN, out), "-9,223,372,036,854,775,808");
}

TEST(text_utf8_all_code_points) {
    for (uint32_t c = 0; c <= 0x110000; c++) {
        char bytes[4];
        uint32_t found = 0xffffffff;
        int length = text_utf8_encode(c, bytes);
        CHECK_EQ_INT(length, c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4);
        int decoded = text_utf8_decode((unsigned char *)bytes, (size_t)length, &found);
        if ((c >= 0xd800 && c < 0xe000) || c > 0x10ffff) {
            CHECK_EQ_INT(decoded, 0);
            continue;
        }
        CHECK_EQ_INT(decoded, length);
        CHECK_EQ_INT(found, c);
        for (int cut = 0; cut < length; cut++)
            CHECK_EQ_INT(text_utf8_decode((unsigned char *)bytes, (size_t)cut, &found), 0);
    }
}

// All sequences of up to three bytes: what decodes must encode back to the same bytes, so nothing
// overlong passes.
TEST(text_utf8_all_short_sequences) {
    for (uint32_t three = 0; three < 1 << 24; three++) {
        unsigned char bytes[3] = {(unsigned char)(three >> 16), (unsigned char)(three >> 8),
                                  (unsigned char)three};
        uint32_t c;
        char back[4];
        int length = text_utf8_decode(bytes, 3, &c);
        if (length == 0) continue;
        CHECK_EQ_INT(text_utf8_encode(c, back), length);
        CHECK(memcmp(back, bytes, (size_t)length) == 0);
    }
    uint32_t c;
    CHECK_EQ_INT(text_utf8_decode((const unsigned char *)"\xf0\x8f\xbf\xbf", 4, &c), 0); // overlong
    CHECK_EQ_INT(text_utf8_decode((const unsigned char *)"\xf4\x90\x80\x80", 4, &c),
                 0); // beyond the last
    CHECK_EQ_INT(text_utf8_decode((const unsigned char *)"\xf8\x88\x80\x80", 4, &c), 0);
}

TEST(text_utf8_prefix) {
    const char text[] = "0123456789 \xc3\xa9 \xf0\x9f\x98\x80 end of it";
    size_t size = sizeof text - 1;
    CHECK_EQ_INT(text_utf8_valid_prefix(text, size), size);
    CHECK_EQ_INT(text_utf8_valid_prefix(text, 12), 11); // in the middle of the first
    CHECK_EQ_INT(text_utf8_valid_prefix(text, 17), 14); // of the second
    CHECK_EQ_INT(text_utf8_valid_prefix("", 0), 0);
    for (size_t at = 0; at < 40; at++) { // a bad byte at every place beside the eight-byte steps
        char plain[40];
        memset(plain, 'a', sizeof plain);
        plain[at] = (char)0x80;
        CHECK_EQ_INT(text_utf8_valid_prefix(plain, sizeof plain), at);
    }
}
