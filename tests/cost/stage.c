// Lists of operations: what they count, and how prices add up.
#include "model/flops.h"
#include "shapes.h"
#include "test.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

// Useful operations of all passes of all layers and both ends, on all ranks of a replica.
static double list_flops(const struct cost_shape *shape) {
    struct cost_ops ops = {NULL, 0, 0};
    struct err err = {0};
    for (int pass = COST_FORWARD; pass <= COST_WEIGHT; pass++) {
        for (int l = 0; l < shape->model->layers; l++)
            CHECK_OK(cost_list_layer(shape, l, (enum cost_pass)pass, &ops, &err), err);
        CHECK_OK(cost_list_embedding(shape, (enum cost_pass)pass, &ops, &err), err);
        CHECK_OK(cost_list_head(shape, (enum cost_pass)pass, &ops, &err), err);
    }
    double sum = 0;
    for (int i = 0; i < ops.count; i++) sum += ops.ops[i].flops;
    cost_ops_free(&ops);
    return sum * shape->mesh.size[MESH_TP] * shape->mesh.size[MESH_CP];
}

static double expected_flops(const struct cost_shape *shape) {
    double tokens = (double)shape->rows * shape->context;
    return flops_per_token_causal(shape->model, shape->context) * tokens;
}

struct model_case {
    const char *name;
    struct model_config config;
};

static void model_cases(struct model_case out[6]) {
    out[0] = (struct model_case){"gpt2", test_gpt2()};
    out[1] = (struct model_case){"llama with grouped queries", test_llama()};
    out[2] = (struct model_case){"windows", test_llama()};
    out[2].config.layer_window[1] = out[2].config.layer_window[3] = 256;
    out[3] = (struct model_case){"experts", test_llama()};
    out[3].config.experts = 8;
    out[3].config.top_k = 2;
    out[3].config.expert_ffn = 512;
    out[3].config.shared_ffn = 256;
    out[3].config.layer_dense[0] = true;
    out[4] = (struct model_case){"norms after", test_llama()};
    out[4].config.norm_place = NORM_AFTER;
    out[5] = (struct model_case){"latent attention", test_llama()};
    out[5].config.kv_heads = 8;
    out[5].config.head_dim = 192;
    out[5].config.q_lora_rank = 512;
    out[5].config.kv_lora_rank = 256;
    out[5].config.qk_rope_head_dim = 64;
    out[5].config.v_head_dim = 128;
}

// Every stack counts the same useful work, and it is that of docs/definitions.md.
TEST(lists_count_what_definitions_count) {
    struct cluster cluster = test_cluster();
    struct model_case cases[6];
    model_cases(cases);
    for (int i = 0; i < 6; i++)
        for (int own = 0; own < 2; own++)
            for (int flash = 0; flash < 2; flash++) {
                struct stack stack = test_stack(own);
                if (own && !flash) continue;
                stack.flash_attention = flash;
                struct cost_shape shape = test_shape(&cases[i].config, &cluster, &stack);
                double found = list_flops(&shape), expected = expected_flops(&shape);
                if (fabs(found / expected - 1) > 1e-9)
                    test_fail(__FILE__, __LINE__, "%s, own %d, flash %d: %.6g for %.6g",
                              cases[i].name, own, flash, found, expected);
            }
}

// "full": every query sees the context.
TEST(lists_count_full_attention_by_pairs) {
    struct cluster cluster = test_cluster();
    struct stack stack = test_stack(false);
    struct model_config model = test_llama();
    struct cost_shape shape = test_shape(&model, &cluster, &stack);
    struct cost_ops ops = {NULL, 0, 0};
    double sum = 0, tokens = shape.rows * shape.context;
    for (int pass = COST_FORWARD; pass <= COST_WEIGHT; pass++) {
        for (int l = 0; l < model.layers; l++)
            CHECK(cost_list_layer(&shape, l, (enum cost_pass)pass, &ops, NULL) == 0);
        CHECK(cost_list_head(&shape, (enum cost_pass)pass, &ops, NULL) == 0);
    }
    for (int i = 0; i < ops.count; i++) {
        const struct cost_op *op = &ops.ops[i];
        double full =
            op->kind == COST_ATTENTION
                ? (double)(op->attention.queries * op->attention.keys) / op->attention.pairs
                : 1;
        sum += op->flops * full;
    }
    cost_ops_free(&ops);
    CHECK_CLOSE(sum / (flops_per_token_full(&model, shape.context) * tokens), 1, 1e-9);
}

TEST(tensor_and_context_parallelism_divide_the_work) {
    struct cluster cluster = test_cluster();
    struct model_case cases[6];
    model_cases(cases);
    for (int i = 0; i < 5; i++)
        for (int own = 0; own < 2; own++) {
            struct stack stack = test_stack(own);
            struct cost_shape shape = test_shape(&cases[i].config, &cluster, &stack);
            shape.mesh.size[MESH_TP] = 2;
            shape.mesh.size[MESH_CP] = 2;
            shape.sequence_parallel = true;
            double router = 0; // of weft's engine: every tp rank does all of it
            for (int l = 0; l < cases[i].config.layers; l++)
                if (own && model_layer_has_experts(&cases[i].config, l))
                    router += 6.0 * cases[i].config.experts * cases[i].config.hidden * shape.rows *
                              shape.context;
            CHECK_CLOSE(list_flops(&shape) / (expected_flops(&shape) + router), 1, 1e-9);
        }
}

// Requirement 83: 8 experts, top-2, width 1024 for 4096 tokens work as much as a dense MLP of width
// 2048; twice top_k is twice the experts' work and nothing else.
TEST(experts_are_priced_by_choice_and_width) {
    struct cluster cluster = test_cluster();
    struct stack stack = test_stack(false);
    struct model_config dense = test_llama(), moe = dense;
    dense.ffn = 2048;
    moe.experts = 8;
    moe.top_k = 2;
    moe.expert_ffn = 1024;
    struct model_config twice = moe;
    twice.top_k = 4;
    const struct model_config *models[3] = {&dense, &moe, &twice};
    double mlp[3], rest[3], router[3];
    for (int i = 0; i < 3; i++) {
        struct cost_shape shape = test_shape(models[i], &cluster, &stack);
        struct cost_ops ops = {NULL, 0, 0};
        shape.rows = 4;
        CHECK(cost_list_layer(&shape, 0, COST_FORWARD, &ops, NULL) == 0);
        mlp[i] = rest[i] = router[i] = 0;
        for (int k = 0; k < ops.count; k++) {
            const struct cost_op *op = &ops.ops[k];
            bool expert = !strncmp(op->name, "expert", 6) || !strcmp(op->name, "up") ||
                          !strcmp(op->name, "down");
            if (!strcmp(op->name, "router"))
                router[i] += op->flops;
            else
                *(expert ? &mlp[i] : &rest[i]) += op->flops;
        }
        cost_ops_free(&ops);
    }
    CHECK_CLOSE(mlp[1], 2.0 * 4096 * 3 * 1024 * 2048, 1e-9);
    CHECK_CLOSE(mlp[1] / mlp[0], 1, 1e-12);
    CHECK_CLOSE(mlp[2] / mlp[1], 2, 1e-12);
    CHECK_CLOSE(rest[2] / rest[1], 1, 1e-12);
    CHECK_CLOSE(router[1], 2.0 * 4096 * 8 * 1024, 1e-12);
    CHECK_CLOSE(router[2], router[1], 1e-12);
    CHECK(router[0] == 0);
}

TEST(recomputation_adds_what_its_mode_says) {
    struct cluster cluster = test_cluster();
    struct model_config model = test_llama();
    struct stack own = test_stack(true), other = test_stack(false);
    struct cost_shape shape = test_shape(&model, &cluster, &own);
    double tokens = shape.rows * shape.context, up = 2 * tokens * 2 * model.ffn * model.hidden;
    shape.recompute = RECOMPUTE_NONE;
    CHECK(test_layer(&shape, 0, COST_RECOMPUTE).seconds == 0);
    shape.recompute = RECOMPUTE_SELECTIVE;
    CHECK(test_layer(&shape, 0, COST_RECOMPUTE).flops == 0);
    CHECK(test_layer(&shape, 0, COST_RECOMPUTE).seconds > 0);
    shape.recompute = RECOMPUTE_SELECTIVE_MLP;
    CHECK_CLOSE(test_layer(&shape, 0, COST_RECOMPUTE).flops / up, 1, 1e-12);
    shape.recompute = RECOMPUTE_FULL; // all but the down projection
    double forward = test_layer(&shape, 0, COST_FORWARD).flops;
    CHECK_CLOSE(test_layer(&shape, 0, COST_RECOMPUTE).flops / (forward - up / 2), 1, 1e-12);
    shape.stack = &other; // checkpoints run all of it
    CHECK_CLOSE(test_layer(&shape, 0, COST_RECOMPUTE).flops / forward, 1, 1e-12);
    // and "selective" is the attention alone
    shape.recompute = RECOMPUTE_SELECTIVE;
    double pairs = (double)flops_attended_pairs(shape.context, 0) * shape.rows;
    CHECK_CLOSE(test_layer(&shape, 0, COST_RECOMPUTE).flops / (4 * pairs * model.heads * 128), 1,
                1e-12);
}

TEST(more_tokens_are_never_quicker) {
    struct cluster cluster = test_cluster();
    struct model_case cases[6];
    model_cases(cases);
    for (int i = 0; i < 6; i++)
        for (int own = 0; own < 2; own++) {
            struct stack stack = test_stack(own);
            struct cost_shape shape = test_shape(&cases[i].config, &cluster, &stack);
            for (int pass = 0; pass < COST_PASSES; pass++) {
                double before = 0;
                for (shape.rows = 1; shape.rows <= 16; shape.rows++) {
                    double now = test_layer(&shape, 1, (enum cost_pass)pass).seconds;
                    CHECK(now >= before * (1 - 1e-12));
                    before = now;
                }
            }
        }
}

TEST(causes_add_up) {
    struct cluster cluster = test_cluster();
    struct stack stack = test_stack(false);
    struct model_config model = test_llama();
    model.experts = 8;
    model.top_k = 2;
    model.expert_ffn = 1024;
    struct cost_shape shape = test_shape(&model, &cluster, &stack);
    shape.mesh.size[MESH_TP] = 2;
    shape.mesh.size[MESH_DP] = 4;
    shape.mesh.ep = 4;
    for (int launches = 0; launches < 2; launches++) {
        stack.launch_seconds = figure_of(launches ? 1e-3 : 0);
        for (int pass = 0; pass < COST_PASSES; pass++) {
            struct cost_sum sum = test_layer(&shape, 2, (enum cost_pass)pass);
            double all = 0;
            for (int c = 0; c < CAUSE_COUNT; c++) all += sum.cause[c];
            CHECK_CLOSE(all / (sum.seconds + 1e-30), sum.seconds > 0 ? 1 : 0, 1e-9);
        }
    }
}

TEST(the_host_bounds_small_layers) {
    struct cluster cluster = test_cluster();
    struct stack stack = test_stack(false);
    struct model_config model = test_llama();
    struct cost_shape shape = test_shape(&model, &cluster, &stack);
    shape.rows = 1;
    shape.context = 64;
    stack.launch_seconds = figure_of(20e-6);
    struct cost_sum sum = test_layer(&shape, 0, COST_FORWARD);
    CHECK_CLOSE(sum.seconds, sum.kernels * 20e-6, 1e-12);
    CHECK(sum.cause[CAUSE_HOST] > 0.5 * sum.seconds);
    stack.graphs = true;
    CHECK(test_layer(&shape, 0, COST_FORWARD).seconds < 0.5 * sum.seconds);
    // Two passes that the host runs through wait for it together.
    stack.graphs = false;
    shape.rows = 8;
    shape.context = 2048;
    struct cost_sum large = test_layer(&shape, 0, COST_FORWARD);
    CHECK(large.cause[CAUSE_HOST] == 0);
    struct cost_sum both = cost_sum_add(&sum, &large);
    CHECK_CLOSE(both.seconds, fmax(sum.device + large.device, sum.host + large.host), 1e-12);
    CHECK(both.seconds < sum.seconds + large.seconds);
}

TEST(messages_are_hidden_only_where_the_stack_overlaps) {
    struct cluster cluster = test_cluster();
    struct stack stack = test_stack(false);
    struct model_config model = test_llama();
    struct cost_shape shape = test_shape(&model, &cluster, &stack);
    shape.mesh.size[MESH_TP] = 4;
    shape.mesh.size[MESH_TP] = 2;
    double exposed = test_layer(&shape, 0, COST_FORWARD).cause[CAUSE_TENSOR];
    CHECK(exposed > 0);
    stack.overlap_tensor = true;
    CHECK(test_layer(&shape, 0, COST_FORWARD).cause[CAUSE_TENSOR] < exposed);
    shape.no_overlap = true;
    CHECK_CLOSE(test_layer(&shape, 0, COST_FORWARD).cause[CAUSE_TENSOR] / exposed, 1, 1e-12);
}

// Keys that go round hide behind attention and nothing else.
TEST(a_ring_hides_behind_attention) {
    struct cluster cluster = test_cluster();
    struct stack stack = test_stack(true);
    struct model_config model = test_llama();
    model.kv_heads = 8;
    struct cost_shape shape = test_shape(&model, &cluster, &stack);
    shape.rows = 1;
    shape.mesh.size[MESH_CP] = 4;
    shape.context = 1 << 17;
    CHECK(test_layer(&shape, 0, COST_FORWARD).cause[CAUSE_CONTEXT] == 0);
    CHECK(test_layer(&shape, 0, COST_FORWARD).hidden > 0);
    cluster.fast.bandwidth = figure_of(1e9);
    struct cost_sum slow = test_layer(&shape, 0, COST_FORWARD);
    CHECK(slow.cause[CAUSE_CONTEXT] > 0);
    CHECK_CLOSE(slow.hidden / slow.cause[CAUSE_ATTENTION], 1, 1e-9);
    shape.gather_keys = true; // one gather before attention
    CHECK(test_layer(&shape, 0, COST_FORWARD).hidden == 0);
}

// Without flash attention every pair is computed, stored and read again.
TEST(stored_scores_cost_more) {
    struct cluster cluster = test_cluster();
    struct stack stack = test_stack(false);
    struct model_config model = test_gpt2();
    struct cost_shape shape = test_shape(&model, &cluster, &stack);
    double fused = test_layer(&shape, 0, COST_FORWARD).cause[CAUSE_ATTENTION];
    stack.flash_attention = false;
    double stored = test_layer(&shape, 0, COST_FORWARD).cause[CAUSE_ATTENTION];
    CHECK(stored > 2 * fused);
    stack.fused_softmax = false;
    CHECK(test_layer(&shape, 0, COST_FORWARD).cause[CAUSE_ATTENTION] > 1.3 * stored);
}

TEST(an_unbalanced_router_costs_its_busiest_rank) {
    struct cluster cluster = test_cluster();
    struct stack stack = test_stack(false);
    struct model_config model = test_llama();
    model.experts = 8;
    model.top_k = 2;
    model.expert_ffn = 4096;
    struct cost_shape shape = test_shape(&model, &cluster, &stack);
    shape.rows = 16;
    shape.mesh.size[MESH_DP] = 8;
    shape.mesh.ep = 8;
    struct cost_sum even = test_layer(&shape, 0, COST_FORWARD);
    shape.imbalance = 1.5;
    struct cost_sum busy = test_layer(&shape, 0, COST_FORWARD);
    CHECK(busy.seconds > 1.1 * even.seconds);
    CHECK(busy.cause[CAUSE_EXPERT] > 1.3 * even.cause[CAUSE_EXPERT]);
    CHECK_CLOSE(busy.flops / even.flops, 1, 1e-12);
}

TEST(shapes_that_cannot_be_are_refused) {
    struct cluster cluster = test_cluster();
    struct stack stack = test_stack(false);
    struct model_config model = test_llama();
    struct cost_shape shape = test_shape(&model, &cluster, &stack);
    struct cost_ops ops = {NULL, 0, 0};
    struct err err = {0};
    shape.mesh.size[MESH_TP] = 3;
    CHECK(cost_list_layer(&shape, 0, COST_FORWARD, &ops, &err) == -1);
    CHECK_CONTAINS(err.text, "heads 8 is not divisible by tp 3");
    shape.mesh.size[MESH_TP] = 1;
    err = (struct err){0};
    CHECK(cost_list_layer(&shape, 4, COST_FORWARD, &ops, &err) == -1);
    CHECK_CONTAINS(err.text, "layers 0 to 3");
    err = (struct err){0};
    shape.rows = 0;
    CHECK(cost_list_head(&shape, COST_FORWARD, &ops, &err) == -1);
    CHECK_CONTAINS(err.text, "at least 1");
    CHECK_EQ_INT(ops.count, 0);
}

// A module that foretells a further token takes a layer, a head and the product that joins its two
// inputs, and none of it counts as useful.
TEST(a_prediction_is_a_layer_and_a_head) {
    struct cluster cluster = test_cluster();
    struct stack stack = test_stack(false);
    struct model_config model = test_llama();
    struct cost_shape shape = test_shape(&model, &cluster, &stack), more = shape;
    struct err err = {0};
    more.predictions = 1;
    stack.graphs = true; // what kernels take, not the host
    for (int pass = COST_FORWARD; pass <= COST_WEIGHT; pass++) {
        struct cost_ops head = {NULL, 0, 0}, layer = {NULL, 0, 0}, with = {NULL, 0, 0};
        CHECK_OK(cost_list_head(&shape, (enum cost_pass)pass, &head, &err), err);
        CHECK_OK(cost_list_layer(&shape, model.layers - 1, (enum cost_pass)pass, &layer, &err),
                 err);
        CHECK_OK(cost_list_head(&more, (enum cost_pass)pass, &with, &err), err);
        struct cost_sum a = cost_price(&shape, &head), b = cost_price(&shape, &layer),
                        c = cost_price(&more, &with);
        CHECK(c.seconds > 2 * a.seconds + b.seconds);
        CHECK(c.seconds < 1.3 * (2 * a.seconds + b.seconds));
        CHECK_CLOSE(c.flops, a.flops, 1e-12);
        cost_ops_free(&head);
        cost_ops_free(&layer);
        cost_ops_free(&with);
    }
}

TEST(the_update_reads_and_writes_states) {
    struct cluster cluster = test_cluster();
    struct stack stack = test_stack(false);
    struct model_config model = test_llama();
    struct cost_shape shape = test_shape(&model, &cluster, &stack);
    // 30 bytes per parameter, 4 for the norm, 16 for clipping, clearing and weights, at 1.8 TB/s
    CHECK_CLOSE(cost_update_seconds(&shape, 1e9, 1e9) * 1e3, 50e9 / 1.8e12 * 1e3 + 4e-3, 1e-9);
    stack.gradient = DTYPE_BF16;
    CHECK_CLOSE(cost_update_seconds(&shape, 1e9, 1e9) * 1e3, 40e9 / 1.8e12 * 1e3 + 4e-3, 1e-9);
    // weft's engine: one pass
    stack = test_stack(true);
    CHECK_CLOSE(cost_update_seconds(&shape, 1e9, 1e9) * 1e3, 34e9 / 1.8e12 * 1e3 + 4e-3, 1e-9);
}

// A step has the pace of the slowest of its accelerators.
TEST(many_accelerators_wait_for_the_slowest) {
    struct cluster cluster = test_cluster();
    struct stack stack = test_stack(false);
    struct model_config model = test_llama();
    struct cost_shape shape = test_shape(&model, &cluster, &stack);
    double alone = test_layer(&shape, 0, COST_FORWARD).seconds;
    shape.mesh.size[MESH_DP] = 4096;
    CHECK_CLOSE(test_layer(&shape, 0, COST_FORWARD).seconds / alone, 1, 1e-12);
    cluster.accelerator.speed_spread = figure_of(0.02);
    double many = test_layer(&shape, 0, COST_FORWARD).seconds / alone;
    // the largest of 4,096 deviations is 3.5, of 8 1.2 (asymptotic)
    CHECK_CLOSE(many, 1 + 0.02 * 2.27, 1e-3);
    shape.mesh.size[MESH_DP] = 8;
    CHECK_CLOSE(test_layer(&shape, 0, COST_FORWARD).seconds / alone, 1, 1e-12);
}
