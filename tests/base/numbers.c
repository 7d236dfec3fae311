#include "base/numbers.h"
#include "test.h"

TEST(numbers_are_sorted) {
    double values[] = {3, -1, 2, 2, 1e300, -1e-300};
    numbers_sort(values, 6);
    const double sorted[] = {-1, -1e-300, 2, 2, 3, 1e300};
    for (int i = 0; i < 6; i++) CHECK(values[i] == sorted[i]);
    numbers_sort(NULL, 0);
}

TEST(medians_of_odd_even_and_none) {
    double odd[] = {9, 1, 5}, even[] = {9, 1, 5, 6}, one[] = {-2};
    CHECK(numbers_median(odd, 3) == 5);
    CHECK(numbers_median(even, 4) == 5.5);
    CHECK(numbers_median(one, 1) == -2);
    CHECK(numbers_median(NULL, 0) == 0);
}
