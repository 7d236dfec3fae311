// A program of weft as a file: which file it is, and of which sources it was built.
#pragma once
#include "base/error.h"

enum { PROGRAM_MARK_BYTES = 96, PROGRAM_DIGEST_BYTES = 24 };

// Differs when another file stands at `path`; "" when there is none.
void program_mark(const char *path, char mark[PROGRAM_MARK_BYTES]);

// Runs "PATH --version", some hundredths of a second, for its version_digest (base/version.h). What
// cannot be run here, hangs, or is no weft, is an error (ERR_USAGE).
int program_digest(const char *path, char digest[PROGRAM_DIGEST_BYTES], struct err *err);
