// What each publisher says once about all of its measurements: which program ran, on which cluster,
// and the recipe where its table is silent. See validate.h. The stacks are described in
// hardware/stacks.yaml, the clusters in hardware/clusters.yaml, each with its source.
#include "plan/validate_parts.h"
#include <string.h>

// The first whose prefix fits holds.
static const struct publisher publishers[] = {
    {"megatron2021_t2", "megatron-2021", "selene", "full", 2048, 51200, 0, false, false,
     "arXiv 2104.04473, sec. 5.2: activation recomputation; ZeRO-3 without model parallelism "
     "beside it"},
    {"megatron2021", "megatron-2021", "selene", "full", 2048, 51200, 0, false, false,
     "arXiv 2104.04473, sec. 5; layers per virtual stage: Megatron-LM "
     "examples/sc21/run_table_1.sh"},
    // Printed seconds and TFLOP/s agree under eq. (3) with 1024 tokens, not with 2048
    {"megatron_readme", "megatron-2020", "selene", "full", 1024, 51200, 0, false, false,
     "Megatron-LM README of January 2021: activations are checkpointed"},
    {"korthikanti2022", "megatron-2022", "selene", NULL, 2048, 51200, 0, false, false,
     "arXiv 2205.05198, Tables 3 and 5"},
    {"mtnlg2022", "megatron-deepspeed", "selene", "full", 2048, 51200, 1, false, false,
     "arXiv 2201.11990, sec. 2"},
    {"vtrain", "megatron-deepspeed", "vtrain", "full", 0, 50257, 0, false, false,
     "VIA-Research/vTrain config/validation: 4 x 200 Gb/s per node"},
    {"bigscience", "megatron-deepspeed-blocking", "jean-zay", "full", 0, 250000, 1, false, false,
     "bigscience tr11-176B-ml/chronicles-prequel.md"},
    {"bloom", "megatron-deepspeed-blocking", "jean-zay", "full", 2048, 250880, 1, false, false,
     "bigscience tr11-176B-ml"},
    {"opt175b", "opt", "dgx-a100", "full", 2048, 50272, 3, false, false,
     "arXiv 2205.01068, sec. 2.4: FSDP with Megatron-LM tensor parallelism, tp 2"},
    {"zerobubble", "zero-bubble", "a100-roce", "none", 0, 50257, 1, false, false,
     "arXiv 2401.10241; sail-sg/zero-bubble-pipeline-parallelism examples: flash attention, sends "
     "not overlapped, distributed optimizer"},
    {"megascale", "megatron-2023", "a100-roce", "fit", 2048, 64000, 1, true, false,
     "arXiv 2402.15627, sec. 6: Megatron-LM at a commit of 2023 beside its own system"},
    {"mosaicml", "llm-foundry", "a100-roce", NULL, 0, 0, 3, false, false,
     "mosaicml/llm-foundry scripts/train/benchmarking/README.md"},
    {"flashattention", "flash-attention", NULL, "none", 2048, 50257, 0, false, false,
     "arXiv 2307.08691, sec. 4.2"},
    {"torchtitan_asynctp", "torchtitan-async-tp", "torchtitan", "fit", 8192, 0, 3, false, false,
     "pytorch/torchtitan benchmarks/asyncTP_llama3_h100_2025-06.md"},
    {"torchtitan_h200", "torchtitan", "dgx-h200", "fit", 8192, 0, 3, false, false,
     "pytorch/torchtitan benchmarks"},
    {"torchtitan", "torchtitan", "torchtitan", "selective", 8192, 0, 3, false, false,
     "pytorch/torchtitan benchmarks; H100 with 96 GB HBM2e at 500 W"},
    {"asynctp", "torchtitan-async-tp", "torchtitan", "fit", 8192, 0, 3, false, false,
     "pytorch/torchtitan benchmarks"},
    {"h200", "torchtitan", "dgx-h200", "fit", 8192, 0, 3, false, false,
     "pytorch/torchtitan benchmarks"},
    {"nanotron", "nanotron", "aws-p5", "none", 4096, 131072, 0, false, false,
     "huggingface/nanotron scripts/scaling_benchmarks.py: no recomputation"},
    {"picotron", "picotron", "aws-p5", "none", 2048, 49152, 0, false, false,
     "huggingface/picotron README"},
    {"llama3_t4", "llama3", "h100-roce", "none", 8192, 128256, 2, false, true,
     "arXiv 2407.21783, sec. 3.3.2: no recomputation at 8K, ZeRO-2 with weights kept"},
    {"deepseek", "deepseek", "h800-ib", "selective", 4096, 0, 1, false, false,
     "arXiv 2412.19437, sec. 3"},
    {"dgxc", "nemo", "dgx-h100", "none", 0, 0, 1, false, false,
     "NVIDIA/dgxc-benchmarking; NVIDIA/NeMo scripts/performance/recommended_model_configs: "
     "recompute_layers 0"},
    {"nemo_longseq", "nemo", "dgx-h100", "fit", 0, 0, 1, false, false,
     "NVIDIA/NeMo docs, performance_long_sequence"},
    {"nemo", "nemo", "dgx-h100", "none", 0, 0, 1, false, false,
     "NVIDIA/NeMo docs, performance_summary; recommended_model_configs: recompute_layers 0"},
    {"megatron_bridge", "megatron-bridge", "dgx-h100", "none", 0, 0, 1, false, false,
     "NVIDIA-NeMo/Megatron-Bridge docs, performance-summary; scripts/performance/configs: "
     "recompute_granularity None"},
    {"megatron_h100", "megatron-core", "dgx-h100", "fit", 4096, 131072, 1, false, false,
     "Megatron-LM README of July 2024: TP, DP and PP messages overlap"},
    {"simumax", "megatron-core-plain", NULL, "none", 4096, 0, 1, false, false,
     "MooreThreads/SimuMax docs/b200: Megatron-LM 0.14, overlap off"},
    {"primus", "primus", NULL, "fit", 0, 0, 1, false, false, "AMD-AGI/Primus projection.md"},
    {"", "megatron-core", NULL, "fit", 0, 0, 1, false, false, "not known: a current Megatron-Core"},
};

// Rows that ran another program than the rest of their table.
static const struct {
    const char *prefix;
    bool in_notes; // else in the model's name
    const char *word;
    struct publisher publisher;
} others[] = {
    {"dgxc",
     false,
     "MaxText",
     {"dgxc", "maxtext", "dgx-h100", "selective_mlp", 0, 0, 3, false, false,
      "NVIDIA/dgxc-benchmarking maxtext/README_70b.md"}},
    // Megatron-Bridge's configs: the up-projections of latent attention are done again, at most
    {"megatron_bridge",
     false,
     "DeepSeekV3 (dropless)",
     {"megatron_bridge", "megatron-bridge-deepep", "dgx-h100", "selective", 0, 0, 1, false, false,
      "scripts/performance/configs/deepseek: recompute_modules mla_up_proj"}},
    {"megatron_bridge",
     false,
     "DeepSeekV3 (tokendrop)",
     {"megatron_bridge", "megatron-bridge-padded", "dgx-h100", "selective", 0, 0, 1, false, false,
      "scripts/performance/configs/deepseek: recompute_modules mla_up_proj"}},
    {"megatron_bridge",
     false,
     "DeepSeek",
     {"megatron_bridge", "megatron-bridge", "dgx-h100", "selective", 0, 0, 1, false, false,
      "scripts/performance/configs/deepseek: recompute_modules mla_up_proj"}},
    {"megatron_bridge",
     false,
     "tokendrop",
     {"megatron_bridge", "megatron-bridge-padded", "dgx-h100", "none", 0, 0, 1, false, false,
      "experts of fixed capacity: the plain all-to-all dispatcher"}},
    {"dgxc",
     false,
     "DeepSeek",
     {"dgxc", "nemo", "dgx-h100", "selective", 0, 0, 1, false, false,
      "NVIDIA/NeMo scripts/performance/recommended_model_configs: mla_up_proj"}},
    {"flashattention",
     true,
     "without FlashAttention",
     {"flashattention", "megatron-2021", NULL, "none", 2048, 50257, 0, false, false,
      "arXiv 2307.08691, Table 1: Megatron-LM without it"}},
    {"flashattention",
     true,
     "FlashAttention;",
     {"flashattention", "flash-attention-1", NULL, "none", 2048, 50257, 0, false, false,
      "arXiv 2307.08691, Table 1"}},
};

// torchtitan's tables go from eager execution to torch.compile and on to float8, which is compiled
// in all of them, as is its asynchronous tensor parallelism.
static bool eager(const struct published *row) {
    if (!published_begins(row->source, "torchtitan") && !published_begins(row->source, "h200"))
        return false;
    if (strstr(row->source, "asynctp")) return false;
    bool compiled = strcasestr(row->notes, "compile") || strcasestr(row->place, "compile");
    bool denied = strcasestr(row->notes, "no compile") ||
                  strcasestr(row->notes, "without compile") || strcasestr(row->notes, "eager");
    bool narrow = strstr(row->precision, "fp8") || strstr(row->precision, "float8");
    return denied || (!compiled && !narrow);
}

const struct publisher *publisher_of(const struct published *row) {
    static const struct publisher torchtitan_eager = {
        "torchtitan",
        "torchtitan-eager",
        "torchtitan",
        "selective",
        8192,
        0,
        3,
        false,
        false,
        "pytorch/torchtitan benchmarks: rows without torch.compile"};
    if (eager(row)) return &torchtitan_eager;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strncmp(row->source, others[i].prefix, strlen(others[i].prefix)) == 0 &&
            strstr(others[i].in_notes ? row->notes : row->model, others[i].word))
            return &others[i].publisher;
    const struct publisher *p = publishers;
    while (strncmp(row->source, p->prefix, strlen(p->prefix)) != 0) p++;
    return p;
}
