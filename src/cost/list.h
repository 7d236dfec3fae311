// Inside the room: a list under construction, and local sizes of the model on one rank.
#pragma once
#include "cost/stage.h"

struct cost_list {
    const struct cost_shape *shape;
    const struct model_config *model; // of the whole model
    const struct stack *stack;
    struct cost_ops *out;
    int layer;
    bool failed;
    enum hardware_precision wide; // of what never is narrower than BF16
    double element;               // bytes of an activation
    int tp, cp, ep;
    bool sequence;
    int64_t tokens;   // of a micro-batch on this rank, all of them under tensor parallelism
    int64_t residual; // of which the residual stream holds so many
    int64_t hidden, heads, kv_heads, head_dim, value_dim, ffn, vocab; // of this rank
};

int cost_list_open(struct cost_list *l, const struct cost_shape *shape, struct cost_ops *out,
                   struct err *err);
// -1 with a message when memory was short.
int cost_list_close(const struct cost_list *l, struct err *err);

// Each returns what was appended (a scratch entry when memory is short).
struct cost_op *cost_product(struct cost_list *l, const char *name, enum hardware_form form,
                             int64_t m, int64_t n, int64_t k);
struct cost_op *cost_kernel(struct cost_list *l, const char *name, enum hardware_kernel kernel,
                            double elements, double bytes_per_element);
struct cost_op *cost_message(struct cost_list *l, const char *name, enum network_kind kind,
                             enum mesh_group_kind group, enum cost_cause cause, double bytes);
struct cost_op *cost_attention(struct cost_list *l, const char *name,
                               const struct price_attention *shape, bool backward);

// Scaling and casting of an operand to narrow formats, and its transpose for the weight gradient.
void cost_quantise(struct cost_list *l, double elements);
// A linear map with its casts to narrow formats, forward; its two gradients.
void cost_linear(struct cost_list *l, const char *name, int64_t m, int64_t n, int64_t k);
void cost_linear_input(struct cost_list *l, const char *name, int64_t m, int64_t n, int64_t k);
void cost_linear_weight(struct cost_list *l, const char *name, int64_t m, int64_t n, int64_t k);
// The sum over micro-batches of a weight's gradient: read and written in the type of gradients.
void cost_accumulate(struct cost_list *l, struct cost_op *op);

// Tensor parallelism: all tokens of what is cut over the ranks; the sum of partial results.
void cost_gather(struct cost_list *l, const char *name);
// Inputs of products, a second time for their weights' gradients: other stacks do so beside the
// products of the input half.
void cost_gather_again(struct cost_list *l, const char *name);
void cost_reduce(struct cost_list *l, const char *name);
// Of a column-parallel map's input gradient.
void cost_reduce_gradient(struct cost_list *l);

// The block between the projections: rotation, attention, forward and backward.
void cost_rotate(struct cost_list *l, bool backward);
void cost_attention_forward(struct cost_list *l);
void cost_attention_backward(struct cost_list *l);

// The experts of a layer. weft's: from their gathered input to the partial sum of their output,
// each expert cut over tp. Others under sequence parallelism: from the tokens of this rank's part
// to theirs, experts whole (Megatron's expert tensor parallelism of 1).
bool cost_experts_apart(const struct cost_list *l);
void cost_experts_forward(struct cost_list *l);
void cost_experts_input(struct cost_list *l);
void cost_experts_weight(struct cost_list *l);

// What a norm costs; `joined`: weft's pass that adds a block's output to the residual stream too.
void cost_norm_forward(struct cost_list *l, bool joined);
void cost_norm_backward(struct cost_list *l);
void cost_activation_forward(struct cost_list *l, double tokens, double width);
void cost_activation_backward(struct cost_list *l, double tokens, double width);
// A block's output joins the residual stream: bias, dropout, sum. And backward.
void cost_join_forward(struct cost_list *l, bool bias);
void cost_join_backward(struct cost_list *l, bool bias);
