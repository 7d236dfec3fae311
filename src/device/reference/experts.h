// What the kernels of device/experts.h compute, as plainly as possible, in double; beside
// reference.h.
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct reference_route {
    int64_t tokens;
    int experts, top_k;
    const double *logits, *bias; // [tokens, experts]; [experts] or NULL
    bool normalise;
};
void reference_route(const struct reference_route *args, int32_t *expert, double *weight,
                     double *score, double *lse);
// sum of dweight weight + aux[group] score + z_scale lse^2 with the experts given, and its gradient
double reference_route_loss(const struct reference_route *args, const int32_t *expert,
                            const double *dweight, const double *aux, const int32_t *group,
                            double z_scale);
void reference_route_backward(const struct reference_route *args, const int32_t *expert,
                              const double *dweight, const double *aux, const int32_t *group,
                              double z_scale, double *dlogits);

void reference_weighted_swiglu(int64_t rows, int64_t ffn, const double *gate_up,
                               const double *weight, double *out);
void reference_weighted_swiglu_backward(int64_t rows, int64_t ffn, const double *gate_up,
                                        const double *weight, const double *dout, double *dgate_up,
                                        double *dweight);
