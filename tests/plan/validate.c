// Published measurements: reading the table, what becomes of a row, operations as sources count
// them, and how far predictions are off on a committed selection.
#include "plan/validate.h"
#include "plan/validate_csv.h"
#include "plan/validate_parts.h"
#include "test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADER                                                                                     \
    "source_id,model_name,layers,hidden,ffn,heads,kv_heads,vocab,seq_len,moe_experts,moe_topk,"    \
    "gpu,gpu_mem_gb,n_gpus,gpus_per_node,tp,sp(0/1),pp,vpp,cp,ep,dp,zero_stage,"                   \
    "schedule(1f1b),micro_batch,global_batch_seqs,recompute(none),precision(bf16),"                \
    "flash_attention(0/1),iter_time_s,tokens_per_s_per_gpu,tflops_per_gpu,mfu_pct,peak_mem_gb,"    \
    "params_b,flops_definition,notes\n"

static void open_table(const char *text, struct published_table *table) {
    struct err err = {0};
    CHECK_OK(published_read(text, strlen(text), "table.csv", table, &err), err);
}

static void check_refused(const char *text, const char *message) {
    struct published_table table;
    struct err err = {0};
    CHECK_EQ_INT(published_read(text, strlen(text), "table.csv", &table, &err), -1);
    CHECK_CONTAINS(err.text, message);
}

TEST(csv_cells) {
    struct csv csv;
    struct err err = {0};
    const char *text = "\xef\xbb\xbf"
                       "a,b(0/1),c\r\n1,\"two, \"\"quoted\"\"\nlines\",\n\n\"\",x,last";
    CHECK_OK(csv_parse(text, strlen(text), "t", &csv, &err), err);
    CHECK_EQ_INT(csv.columns, 3);
    CHECK_EQ_INT(csv.rows, 2);
    CHECK_STR(csv_cell(&csv, 0, csv_column(&csv, "b")), "two, \"quoted\"\nlines");
    CHECK_STR(csv_cell(&csv, 0, 2), "");
    CHECK_STR(csv_cell(&csv, 1, 0), "");
    CHECK_STR(csv_cell(&csv, 1, 2), "last");
    CHECK_EQ_INT(csv.line[1], 5);
    CHECK_EQ_INT(csv_column(&csv, "d"), -1);
    csv_free(&csv);
}

TEST(csv_refusals) {
    struct csv csv;
    struct err err;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "expected a header line"},
        {"a,b\n1\n", "line 2: expected 2 cells as in the header, found 1"},
        {"a,b\n1,2\n1,2,3\n", "line 3: expected 2 cells as in the header, found 3"},
        {"a,b\n\"1,2\n", "line 2: the quote that begins here does not end"},
        {"a,b\n\"1\"2,3\n", "line 2: expected a comma behind the closing quote"},
        {"a,a\n", "the column \"a\" stands twice"},
        {"a,b\n1\r2,3\n", "line 2: a carriage return inside a line"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        err = (struct err){0};
        CHECK_EQ_INT(csv_parse(cases[i].text, strlen(cases[i].text), "t", &csv, &err), -1);
        CHECK_CONTAINS(err.text, cases[i].message);
    }
    err = (struct err){0};
    CHECK_EQ_INT(csv_parse("a\0b", 3, "t", &csv, &err), -1);
    CHECK_CONTAINS(err.text, "zero byte");
}

TEST(published_cells) {
    struct published_table table;
    open_table("source_id,gpu,n_gpus,tp,iter_time_s,global_batch_seqs\nx,A100,8,,1.5,2048\n",
               &table);
    CHECK_EQ_INT(table.rows, 1);
    CHECK_EQ_INT(table.row[0].gpus, 8);
    CHECK_EQ_INT(table.row[0].tp, -1);
    CHECK_EQ_INT(table.row[0].sequences, 2048);
    CHECK_CLOSE(table.row[0].seconds, 1.5, 1e-12);
    CHECK(isnan(table.row[0].tflops));
    CHECK_STR(table.row[0].notes, "");
    published_close(&table);
    check_refused("source_id,gpu\nx,A100\n", "no column \"n_gpus\"");
    check_refused("source_id,gpu,n_gpus,tp\nx,A100,8\n", "line 2: expected 4 cells");
}

// One bad cell costs its row alone.
TEST(cells_that_are_no_numbers) {
    static const struct {
        const char *row, *wrong;
    } cases[] = {
        {"x,A100,8,two,1", "tp is \"two\"; expected a number of 0 or more"},
        {"x,A100,8,-1,1", "tp is \"-1\"; expected a number of 0 or more"},
        {"x,A100,8.5,1,1", "n_gpus is \"8.5\"; expected a whole number"},
        {"x,A100,99999999999,1,1", "n_gpus is \"99999999999\"; expected a whole number"},
        {"x,A100,8,1,nan", "iter_time_s is \"nan\"; expected a number of 0 or more"},
        {"x,A100,8,1,1e999", "iter_time_s is \"1e999\""},
        {"x,A100,8.0,1,1", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct published_table table;
        char text[256];
        snprintf(text, sizeof text, "source_id,gpu,n_gpus,tp,iter_time_s\n%s\n", cases[i].row);
        open_table(text, &table);
        CHECK_CONTAINS(table.row[0].wrong, cases[i].wrong);
        if (!cases[i].wrong[0]) CHECK_STR(table.row[0].wrong, "");
        published_close(&table);
    }
}

// ---- rows as jobs

struct mapped {
    struct published_table table;
    struct catalogue *catalogue;
    struct validate_tools tools;
    struct job job;
    struct err err;
    int result;
};

static void map(struct mapped *m, const char *row) {
    char text[4096];
    snprintf(text, sizeof text, HEADER "%s\n", row);
    *m = (struct mapped){.result = 0};
    open_table(text, &m->table);
    CHECK_OK(catalogue_open(&m->catalogue, &m->err), m->err);
    m->tools.catalogue = m->catalogue;
    m->result = published_job(&m->table.row[0], &m->tools, &m->job, &m->err);
}
static void map_close(struct mapped *m) {
    if (m->result == 0) free((char *)m->job.schedule_csv);
    validate_tools_free(&m->tools);
    catalogue_close(m->catalogue);
    published_close(&m->table);
}
static int layers_of_stage(const struct job *job, int stage) {
    return job->layout.layer_first[stage + 1] - job->layout.layer_first[stage];
}

// source_id,model_name,layers,hidden,ffn,heads,kv_heads,vocab,seq_len,experts,topk, gpu,mem,n_gpus,
// per_node,tp,sp,pp,vpp,cp,ep,dp,zero, schedule,micro_batch,gbs,recompute,precision,flash, time,
// tok/s,tflops,mfu,memory,params,definition,notes
TEST(zero_bubble_rows) { // first and last stage have one layer fewer
    struct mapped m;
    map(&m, "zerobubble_t4,GPT 1.5B,22,2304,,24,,,1024,,, A100,80,8,8,1,,8,,1,,1,, 1f1b,6,144,,,, "
            ",12083,,,30,1.5,,");
    CHECK_EQ_INT(m.result, 0);
    CHECK_EQ_INT(layers_of_stage(&m.job, 0), 2);
    CHECK_EQ_INT(layers_of_stage(&m.job, 1), 3);
    CHECK_EQ_INT(layers_of_stage(&m.job, 7), 2);
    CHECK_EQ_INT(m.job.micro_batches, 24);
    CHECK_EQ_INT(m.job.recompute, RECOMPUTE_NONE);
    CHECK_STR(m.job.cluster.accelerator.name, "a100-80");
    map_close(&m);
    // 24 stages of 22 layers: embedding and head stand alone
    map(&m, "zerobubble_t4,GPT 1.5B,22,2304,,24,,,1024,,, A100,80,8,8,1,,8,3,1,,1,, "
            "interleaved,6,144,,,, ,13414,,,40,1.5,,");
    CHECK_EQ_INT(m.result, 0);
    CHECK_EQ_INT(layers_of_stage(&m.job, 0), 0);
    CHECK_EQ_INT(layers_of_stage(&m.job, 12), 1);
    CHECK_EQ_INT(layers_of_stage(&m.job, 23), 0);
    map_close(&m);
    map(&m, "zerobubble_t4,GPT 1.5B,22,2304,,24,,,1024,,, A100,80,8,8,1,,8,,1,,1,, zb-2p,6,144,,,, "
            ",14848,,,59,1.5,,");
    CHECK_EQ_INT(m.result, 0);
    CHECK_EQ_INT(m.job.schedule, PIPELINE_FILE);
    CHECK_CONTAINS(m.job.schedule_csv, "0F0,0F1,0F2");
    map_close(&m);
    // the list is there when memory is asked for the recipe of a publisher who says nothing
    map(&m, "somebody,GPT 1.5B,22,2304,,24,,,1024,,, A100,80,8,8,1,,8,,1,,1,, zb-2p,6,144,,,, "
            ",14848,,,59,1.5,,");
    CHECK_EQ_INT(m.result, 0);
    CHECK_CONTAINS(m.job.schedule_csv, "0F0,0F1,0F2");
    map_close(&m);
}

TEST(bigscience_rows) {
    struct mapped m;
    map(&m, "bigscience_prequel,GPT 194B,,14400,57600,,,250000,2048,,, A100,80,384,8,8,,6,,1,,8,1, "
            "1f1b,1,2048,full,bf16,0, 183.64,,92.38,,39,194,,");
    CHECK_EQ_INT(m.result, 0);
    CHECK_EQ_INT(m.job.model.heads, 96);  // as the chronicle has it for this width
    CHECK_EQ_INT(m.job.model.layers, 77); // from 194e9 parameters
    CHECK_EQ_INT(m.job.accumulate_type, DTYPE_F32);
    CHECK_EQ_INT(m.job.layout.zero, 1);
    CHECK_STR(m.job.cluster.name, "jean-zay");
    CHECK_EQ_INT(m.job.cluster.nodes, 48);
    map_close(&m);
}

TEST(megatron_rows) {
    struct mapped m;
    // the paper prints no chunks; its script does: 5 of 15 layers
    map(&m,
        "megatron2021_t1,GPT 76.1B,60,10240,40960,80,,51200,2048,,, A100,80,1024,8,8,,4,,1,,32,, "
        "interleaved,2,1792,full,fp16,0, ,,140,,,76.1,HARDWARE flops incl. recompute: 96*B,");
    CHECK_EQ_INT(m.result, 0);
    CHECK_EQ_INT(m.job.layout.chunks, 3);
    CHECK_EQ_INT(m.job.schedule, PIPELINE_INTERLEAVED);
    map_close(&m);
    // seconds and TFLOP/s of this README agree at 1,024 tokens; one replica's batch at once
    map(&m, "megatron_readme_jan2021,GPT 1B,24,1920,,15,,51200,,,, A100,,128,8,1,,1,,1,,128,, "
            "none,,2048,,,, 1.153,,139.8,,,1.16,not stated,");
    CHECK_EQ_INT(m.result, 0);
    CHECK_EQ_INT(m.job.context, 1024);
    CHECK_EQ_INT(m.job.rows, 16);
    CHECK_CLOSE(validate_flops(&m.job, VALIDATE_FLOPS_HARDWARE) / (1.153 * 128 * 1e12), 139.8,
                0.01);
    map_close(&m);
}

TEST(nvidia_rows) {
    struct mapped m;
    map(&m,
        "dgxc_25.04,Nemotron4 340B,96,18432,73728,96,8,256000,4096,,, H100,80,256,8,8,,8,,1,,4,, "
        "1f1b,1,64,,fp8,, 2.93,,,,,340,,");
    CHECK_EQ_INT(m.result, 0);
    CHECK_EQ_INT(m.job.layout.chunks, 12);
    CHECK_EQ_INT(m.job.precision, HARDWARE_FP8);
    CHECK_EQ_INT(m.job.model.activation, ACTIVATION_GELU_TANH);
    CHECK(!m.job.model.tied_head);
    CHECK(m.job.layout.sequence_parallel);
    map_close(&m);
    // shape by name, experts over ranks of tensor groups too
    map(&m,
        "megatron_bridge_25.09,Qwen3_235B_a22B (tokendrop),,,,,,,4096,,, GB200,,64,,2,,1,1,1,64,"
        "32,, none,1,1024,,fp8,, ,4452,659,,,,,GA=32");
    CHECK_EQ_INT(m.result, 0);
    CHECK_EQ_INT(m.job.model.experts, 128);
    CHECK_EQ_INT(m.job.model.kv_heads, 4);
    CHECK_EQ_INT(m.job.layout.mesh.ep, 32);
    CHECK_EQ_INT(m.job.layout.mesh.size[MESH_DP], 32);
    CHECK_EQ_INT(m.job.cluster.domain, 64);
    map_close(&m);
    map(&m, "megatron_bridge_25.09,DeepSeekV3 (dropless),61,7168,18432,128,,129280,4096,256,8, "
            "H100,,1024,8,2,,8,4,1,64,64,, ,1,8192,,fp8,, ,1297,338,,,671,,");
    CHECK_EQ_INT(m.result, 0);
    CHECK(m.job.model.kv_lora_rank > 0);
    CHECK_EQ_INT(m.job.model.expert_ffn, 2048);
    CHECK_EQ_INT(m.job.schedule, PIPELINE_INTERLEAVED);
    CHECK_EQ_INT(m.job.layout.layer_first[32], 61);
    map_close(&m);
    map(&m,
        "dgxc_25.04,Llama 3 70B (MaxText),80,8192,28672,64,8,128256,8192,,, H100,80,1024,8,1,,1,,"
        "1,,1024,3, none,2,2048,,bf16,, 15.603,,,,,70,,FSDP group 128 (dcn)");
    CHECK_EQ_INT(m.result, 0);
    CHECK_STR(m.job.stack->name, "maxtext");
    CHECK_EQ_INT(m.job.layout.mesh.shard, 128);
    map_close(&m);
}

TEST(other_rows) {
    struct mapped m;
    // nanotron balances the head, worth four layers, against layers
    map(&m,
        "nanotron_playbook,nanotron Llama 1B,16,2048,8192,32,32,131072,4096,,, H100,80,8,8,1,,4,,"
        "1,,2,1, ,1,256,,bf16,, ,1000,,20,30,1.342,,");
    CHECK_EQ_INT(m.result, 0);
    CHECK_EQ_INT(layers_of_stage(&m.job, 0), 5);
    CHECK_EQ_INT(layers_of_stage(&m.job, 3), 1);
    CHECK(m.job.model.tied_head);
    map_close(&m);
    // the last of three micro-batches is smaller
    map(&m, "mosaicml_llmfoundry,MPT-1b,24,2048,8192,16,,50368,2048,,, A100,40,8,8,1,,1,,1,,8,3, "
            "none,6,112,none,bf16,1, ,10000,,,,1.31,,mixed_precision PURE");
    CHECK_EQ_INT(m.result, 0);
    CHECK_STR(m.job.cluster.accelerator.name, "a100-40");
    CHECK_EQ_INT(m.job.micro_batches, 3);
    CHECK_EQ_INT(m.job.accumulate_type, DTYPE_BF16);
    CHECK_CLOSE(published_seconds(&m.table.row[0], &m.job), 144 * 2048 / (10000.0 * 8), 1e-9);
    map_close(&m);
    map(&m,
        "flashattention2_t1,GPT3-1.3B,,,,,,,8192,,, A100,,8,8,1,,1,,1,,8,, none,,,,,1, ,,170,,,1.3,"
        "attention NOT halved,FlashAttention; 2k/8k context");
    CHECK_EQ_INT(m.result, 0);
    CHECK_STR(m.job.stack->name, "flash-attention-1");
    CHECK_EQ_INT(m.job.rows, 2);
    map_close(&m);
    map(&m,
        "somebody,Yi 34B,60,7168,20480,56,8,64000,4096,,, MI300X,,8,8,8,,1,,,,1,, ,1,64,,bf16,, "
        ",1000,,,,34,,");
    CHECK_EQ_INT(m.result, 0);
    CHECK_STR(m.job.stack->name, "megatron-core");
    CHECK_EQ_INT(m.job.model.activation, ACTIVATION_SWIGLU);
    map_close(&m);
}

static void check_left_out(const char *row, const char *reason) {
    struct mapped m;
    map(&m, row);
    CHECK_EQ_INT(m.result, -1);
    CHECK_CONTAINS(m.err.text, reason);
    map_close(&m);
}

TEST(rows_left_out) {
    check_left_out("x,Model,10,,,8,,,1024,,, A100,,8,,1,,1,,,,,, ,1,8,,,, 1,,,,,,,",
                   "the model's width is not given");
    check_left_out("x,Model,10,1024,,8,,,,,, A100,,8,,1,,1,,,,,, ,1,8,,,, 1,,,,,,,",
                   "the sequence length is not given");
    check_left_out("x,GPT,,1024,,8,,,1024,,, A100,,8,,1,,1,,,,,, ,1,8,,,, 1,,,,,,,",
                   "the number of layers is not given");
    check_left_out("x,GPT,10,1000,,7,,,1024,,, A100,,8,,1,,1,,,,,, ,1,8,,,, 1,,,,,,,",
                   "7 heads do not divide the model's width of 1000");
    check_left_out("x,GPT,10,1024,,8,,,1024,,, TPUv5,,8,,1,,1,,,,,, ,1,8,,,, 1,,,,,,,", "tpuv5");
    check_left_out("x,GPT,10,1024,,8,,,1024,,, A100,,0,,1,,1,,,,,, ,1,8,,,, 1,,,,,,,",
                   "the number of GPUs is not given");
    check_left_out("x,GPT,10,1024,,8,,,1024,,, A100,,8,,3,,1,,,,,, ,1,8,,,, 1,,,,,,,",
                   "tp 3 x pp 1 x cp 1 does not divide 8 GPUs");
    check_left_out("x,GPT,10,1024,,8,,,1024,,, A100,,8,,1,,2,,,,,, v-min,1,8,,,, 1,,,,,,,",
                   "schedule \"v-min\"");
    check_left_out("x,GPT,10,1024,,8,,,1024,,, A100,,8,,1,,2,,,,,, ,1,,,,, 1,,,,,,,",
                   "the batch of a step is not given");
    check_left_out("x,GPT,10,1024,,8,,,1024,,, A100,,8,,1,,1,,,,,, ,1,4,,,, 1,,,,,,,",
                   "less than one for each of 8 replicas");
    check_left_out("x,GPT,10,1024,,8,,,1024,,, A100,,8,,1,,1,,,,,, ,1,8,,int4,, 1,,,,,,,",
                   "precision \"int4\"");
    check_left_out("x,GPT,10,1024,,8,,,1024,,, A100,,8,,1,,1,,,,,, ,1,8,,nvfp4,, 1,,,,,,,",
                   "no rate of the a100-80 in nvfp4 is known");
    check_left_out("x,GPT,10,1024,,8,,,1024,,, A100,,8,,1,,1,,,,,, ,1,8,some,,, 1,,,,,,,",
                   "recompute \"some\"");
    check_left_out("x,Nemotron-H 56B,10,1024,,8,,,1024,,, A100,,8,,1,,1,,,,,, ,1,8,,,, 1,,,,,,,",
                   "state-space models");
    check_left_out("x,GPT,10,1048576,,8,,,67108864,,, A100,,1073741823,,1,,1,,,,,, "
                   ",1048576,999999999999,,,, 1,,,,,,,",
                   "head_dim");
    check_left_out("x,GPT,510,1024,,8,,,1024,,, A100,,4096,,1,,256,2,,,,, ,1,65536,,,, 1,,,,,,,",
                   "more stages than the planner has");
}

// ---- operations

TEST(flops_as_sources_count) {
    struct mapped m;
    double B = 1536, s = 2048, l = 48, h = 8192, V = 51200;
    map(&m, "megatron2021_t1,GPT 39.1B,48,8192,32768,64,,51200,2048,,, A100,80,512,8,8,,2,,1,,32,, "
            "interleaved,4,1536,full,fp16,0, ,,138,,,39.1,HARDWARE flops incl. recompute: "
            "F=96*B*s*l*h^2*(1+s/(6h)+V/(16lh)) (eq. 3),");
    CHECK_EQ_INT(m.result, 0);
    double eq3 = 96 * B * s * l * h * h * (1 + s / (6 * h) + V / (16 * l * h));
    CHECK_CLOSE(published_flops(&m.table.row[0], &m.job) / eq3, 1, 1e-9);
    CHECK_CLOSE(published_seconds(&m.table.row[0], &m.job), eq3 / (138e12 * 512), 1e-6);
    CHECK_CLOSE(validate_flops(&m.job, VALIDATE_FLOPS_FULL),
                72 * B * s * l * h * h * (1 + s / (6 * h) + V / (12 * l * h)), 1e-9);
    map_close(&m);
    // Megatron-Bridge: keys before a query only
    map(&m,
        "megatron_bridge_25.09,LLAMA3_70B,80,8192,28672,64,8,128256,8192,,, H100,,64,8,4,,8,5,1,1,"
        "2,, ,1,128,,fp8,, ,,727,,,70,model flops; causal attention counted as HALF (s/2),");
    CHECK_EQ_INT(m.result, 0);
    CHECK_CLOSE(published_flops(&m.table.row[0], &m.job) / (128.0 * 8192), 0.4495e12, 0.002);
    map_close(&m);
    // NeMo 24.07: all pairs
    map(&m, "nemo_24.07,LLAMA3-70B,80,8192,28672,64,8,128256,8192,,, H100,,64,8,4,,4,5,2,1,2,, "
            ",1,128,,fp8,, ,,738,,,70,FULL (non-causal) attention; verified,");
    CHECK_EQ_INT(m.result, 0);
    CHECK_CLOSE(published_flops(&m.table.row[0], &m.job) / (128.0 * 8192), 0.4815e12, 0.002);
    map_close(&m);
    // a share of the peak
    map(&m,
        "picotron,LLaMA-2-7B,,,,,,,4096,,, H100,,64,8,2,,1,,1,1,32,, ,1,256,,bf16,, ,,,38,,7,,");
    CHECK_EQ_INT(m.result, 0);
    CHECK_CLOSE(published_seconds(&m.table.row[0], &m.job),
                validate_flops(&m.job, VALIDATE_FLOPS_FULL) / (0.38 * 64 * 989.4e12), 0.002);
    map_close(&m);
    // BigScience's first estimator: 8 operations per parameter and token
    map(&m, "bigscience_prequel,GPT 20B,8,14400,57600,32,,250000,2048,,, A100,80,8,8,8,,1,,1,,1,1, "
            "none,1,2048,full,bf16,0, ,,107.48,,68,20,OLD estimator,");
    CHECK_EQ_INT(m.result, 0);
    CHECK_CLOSE(published_seconds(&m.table.row[0], &m.job), 777, 0.005); // its log says 777.09
    map_close(&m);
}
