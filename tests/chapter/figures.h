// More of what rows ask the program: rates and money, failures, what is kept of activations.
#pragma once
#include "chapter/ask.h"

double h100_rate(enum hardware_precision precision); // dense FLOP/s
double bubble(int pp, int micro_batches);            // of 1F1B by formula
double link_ratio(void);                             // NVLink over InfiniBand, one direction each

// MFU by 6 P FLOPs a token on H100, and with attention: 70B at 4,096 tokens.
double mfu(double tokens_per_second, double parameters, int accelerators);
double mfu_full(double tokens_per_second, int accelerators);
double tokens_at(double mfu, double parameters, int accelerators); // tokens/s
double hours(double tokens, double tokens_per_second);
double dollars(int accelerators, double hours); // at the catalogue's price

// Least ZeRO-3 data ranks with which states fit.
int least_data_ranks(double parameters, int tp, int pp, double limit_gb);

// Seconds between failures at 1 % of the accelerators in a week; at the rate measured on Llama 3.
double mtbf(int accelerators);
double mtbf_measured(int accelerators);
// Least share of the time lost to saving and to work done again, at the best interval.
double least_waste(double blocking, int accelerators);
// Shares saved and lost at an interval: blocking / interval + interval / 2 / MTBF.
double waste_at(double interval, double blocking, int accelerators);
// Spare nodes with which a share `percentile` of failures find one, a day of repair.
int spares_per_failure(int accelerators, double percentile);

// Bytes of a micro-batch's residual stream, BF16: what tensor ranks add up and stages send.
double stream_bytes(const char *model, int rows, int tokens);
// Activations in GB that the fullest rank of 1F1B keeps: weft's own list.
struct kept {
    const char *model;
    int tp, pp, cp, rows, context, micro_batches;
    bool sequence;
    enum engine_recompute mode;
};
double kept_gb(struct kept kept);
double kept_70b(enum engine_recompute mode, int rows); // one accelerator, 4,096 tokens
// Operations done again over those of a training step, 70B.
double redone(const char *with, enum engine_recompute mode);

// Lines of size sheets: 70B and documents of 600 tokens; the pools of a 70B policy and a 13B
// reward model on 512 accelerators, divided as the chapter has it.
double packing(const char *name, int tokens);
double pool(const char *name);
