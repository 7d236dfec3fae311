// This test program as a rank of an MPI run: with WEFT_TEST_RANK in its environment it does what
// that says and leaves, before any test begins.
//
//   exchange        sums over all ranks, and who is where, as one line of rank 0
//   transfer BYTES  seconds that so many bytes take from the first to the last rank
//   barriers        one barrier after the other until a rank is missed; watchdog of two seconds
#pragma once
#define RANK_VARIABLE "WEFT_TEST_RANK"
