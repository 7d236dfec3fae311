// weft bench gemm: what it says of itself and refuses. Its figures are looked at by people.
#include "test.h"
#include <string.h>

TEST(bench_gemm_describes_itself) {
    char out[8192];
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s bench gemm --help", test_weft()), 0);
    CHECK_CONTAINS(out, "best GEMM rate");
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s bench --help", test_weft()), 0);
    CHECK_CONTAINS(out, "gemm");
}

TEST(bench_gemm_refuses_what_it_does_not_know) {
    char out[8192];
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s bench gemm --type f16", test_weft()), 2);
    CHECK_CONTAINS(out, "expected bf16 or f32");
    CHECK_EQ_INT(test_shell(out, sizeof out, "%s bench gemm --token 5", test_weft()), 2);
    CHECK_CONTAINS(out, "--tokens");
}
