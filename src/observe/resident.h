// Memory that the process holds, as the system counts it.
#pragma once
#include <stdint.h>

uint64_t resident_pss_bytes(
    void); // proportional share of all mapped pages; 0 where the system does not tell
// Highest PSS so far: the present one plus how far the resident size once stood above the present
// one.
uint64_t resident_peak_pss_bytes(void);
