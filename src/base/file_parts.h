// What the sources of file.h share.
#pragma once
#include "base/error.h"

// 0, or -1 with errno where the test's hook refuses the call.
int file_may(const char *call, const char *path);
int file_sync_folder_of(const char *path, struct err *err); // that it lies in
