// What the sources of file.h share.
#pragma once

// 0, or -1 with errno where the test's hook refuses the call.
int file_may(const char *call, const char *path);
