// Numbers with units.
#include "hardware/parts.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const unit_words[UNITS] = {
    "a size such as 80 GB or 192 GiB",
    "bytes per second such as 3.35 TB/s, or 400 Gb/s for bits",
    "operations per second such as 989 TFLOP/s",
    "a time such as 5 us, 2 ms or 1.5 h",
    "a power such as 700 W",
    "a share from 0 to 1, or 85 %",
    "a number",
    "a price in dollars",
    "a number per day",
    "a number per second",
};
const char *const unit_names[UNITS] = {"B", "B/s", "FLOP/s", "s", "W", "", "", "$", "/day", "/s"};
static const double unit_most[UNITS] = {1e19, 1e15, 1e19, 3e8, 1e6, 1, 1e12, 1e9, 1e3, 1e12};

static const struct {
    enum field_unit unit;
    const char *name;
    double factor;
} suffixes[] = {
    {UNIT_BYTES, "B", 1},
    {UNIT_BYTES, "kB", 1e3},
    {UNIT_BYTES, "MB", 1e6},
    {UNIT_BYTES, "GB", 1e9},
    {UNIT_BYTES, "TB", 1e12},
    {UNIT_BYTES, "PB", 1e15},
    {UNIT_BYTES, "KiB", 1024.0},
    {UNIT_BYTES, "MiB", 1048576.0},
    {UNIT_BYTES, "GiB", 1073741824.0},
    {UNIT_BYTES, "TiB", 1099511627776.0},
    {UNIT_BANDWIDTH, "B/s", 1},
    {UNIT_BANDWIDTH, "MB/s", 1e6},
    {UNIT_BANDWIDTH, "GB/s", 1e9},
    {UNIT_BANDWIDTH, "TB/s", 1e12},
    {UNIT_BANDWIDTH, "Gb/s", 1.25e8},
    {UNIT_BANDWIDTH, "Gbit/s", 1.25e8},
    {UNIT_BANDWIDTH, "Mb/s", 1.25e5},
    {UNIT_FLOPS, "FLOP/s", 1},
    {UNIT_FLOPS, "GFLOP/s", 1e9},
    {UNIT_FLOPS, "TFLOP/s", 1e12},
    {UNIT_FLOPS, "PFLOP/s", 1e15},
    {UNIT_SECONDS, "s", 1},
    {UNIT_SECONDS, "ms", 1e-3},
    {UNIT_SECONDS, "us", 1e-6},
    {UNIT_SECONDS, "ns", 1e-9},
    {UNIT_SECONDS, "min", 60},
    {UNIT_SECONDS, "h", 3600},
    {UNIT_SECONDS, "d", 86400},
    {UNIT_WATTS, "W", 1},
    {UNIT_WATTS, "kW", 1e3},
    {UNIT_SHARE, "%", 0.01},
    {UNIT_PER_SECOND, "/s", 1},
    {UNIT_PER_DAY, "/day", 1},
    {UNIT_MONEY, "$", 1},
};

int unit_read(const char *text, enum field_unit unit, double *out, struct err *err) {
    char *end;
    double value = strtod(text, &end), factor = 0;
    bool number = end != text && strchr("+-.0123456789", text[0]) && !strpbrk(text, "xX");
    while (*end == ' ') end++;
    if (*end == 0) factor = 1;
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0] && factor == 0; i++)
        if (suffixes[i].unit == unit && strcmp(suffixes[i].name, end) == 0)
            factor = suffixes[i].factor;
    if (!number || factor == 0)
        return err_set(err, ERR_USAGE, "expected %s, found \"%.100s\"", unit_words[unit], text);
    value *= factor;
    if (!isfinite(value) || value < 0)
        return err_set(err, ERR_USAGE, "expected %s, not negative, found \"%.100s\"",
                       unit_words[unit], text);
    if (value > unit_most[unit])
        return err_set(err, ERR_USAGE, "expected %s, at most %g, found \"%.100s\"",
                       unit_words[unit], unit_most[unit], text);
    *out = value;
    return 0;
}

void unit_write(double value, char out[32]) {
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(out, 32, "%.*g", digits, value);
        if (strtod(out, NULL) == value) return;
    }
}
