// Shared by the verbs, see cli.h.
#include "cli/cli.h"
#include <stdio.h>

int cli_fail(const struct err *err) {
    fflush(stdout); // results before the reason why there are no more
    fprintf(stderr, "weft: %s\n", err->text);
    return err_exit_status(err);
}
