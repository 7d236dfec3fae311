// The one file that knows oneDNN, and where its versions 2 and 3 differ (C interface; chosen when
// compiled). Every product is a `matmul` primitive with its own memory objects, made once and found
// again by its shape; scratch memory is the caller's.
#include "device/cpu/gemm.h"
#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t memory_desc; // a handle
typedef const_dnnl_memory_desc_t memory_desc_view;
#else
typedef dnnl_memory_desc_t *memory_desc; // a copy on the heap, so that both versions look alike
typedef const dnnl_memory_desc_t *memory_desc_view;
#endif

struct gemm_entry {
    struct gemm_spec spec;
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c, bias, scratch;
    uint64_t workspace_bytes;
};

// ---- differences of the versions --------------------------------------------------------------

static memory_desc desc_new(const dnnl_dims_t dims, dnnl_data_type_t type,
                            const dnnl_dims_t strides) {
#if DNNL_VERSION_MAJOR >= 3
    dnnl_memory_desc_t desc = NULL;
    dnnl_status_t status =
        strides ? dnnl_memory_desc_create_with_strides(&desc, 2, dims, type, strides)
                : dnnl_memory_desc_create_with_tag(&desc, 2, dims, type, dnnl_format_tag_any);
    return status == dnnl_success ? desc : NULL;
#else
    dnnl_memory_desc_t *desc = malloc(sizeof *desc);
    if (!desc) return NULL;
    dnnl_status_t status =
        strides ? dnnl_memory_desc_init_by_strides(desc, 2, dims, type, strides)
                : dnnl_memory_desc_init_by_tag(desc, 2, dims, type, dnnl_format_tag_any);
    if (status == dnnl_success) return desc;
    free(desc);
    return NULL;
#endif
}

static memory_desc desc_copy(memory_desc_view from) {
#if DNNL_VERSION_MAJOR >= 3
    dnnl_memory_desc_t desc = NULL;
    return dnnl_memory_desc_clone(&desc, from) == dnnl_success ? desc : NULL;
#else
    dnnl_memory_desc_t *desc = malloc(sizeof *desc);
    if (desc) *desc = *from;
    return desc;
#endif
}

static void desc_free(memory_desc desc) {
    if (!desc) return;
#if DNNL_VERSION_MAJOR >= 3
    dnnl_memory_desc_destroy(desc);
#else
    free(desc);
#endif
}

static uint64_t desc_bytes(memory_desc_view desc) {
    return desc ? (uint64_t)dnnl_memory_desc_get_size(desc) : 0;
}

static dnnl_status_t matmul_desc_new(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                     memory_desc a, memory_desc b, memory_desc bias, memory_desc c,
                                     dnnl_primitive_attr_t attr) {
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_matmul_primitive_desc_create(out, engine, a, b, bias, c, attr);
#else
    dnnl_matmul_desc_t operation;
    dnnl_status_t status = dnnl_matmul_desc_init(&operation, a, b, bias, c);
    return status == dnnl_success ? dnnl_primitive_desc_create(out, &operation, attr, engine, NULL)
                                  : status;
#endif
}

static dnnl_status_t add_sum(dnnl_post_ops_t ops) {
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
#else
    return dnnl_post_ops_append_sum(ops, 1.0f);
#endif
}

// ---- the library as a whole -------------------------------------------------------------------

const char *gemm_version(void) {
    static char text[32];
    if (!text[0]) {
        const dnnl_version_t *v = dnnl_version();
        snprintf(text, sizeof text, "%d.%d.%d", v->major, v->minor, v->patch);
    }
    return text;
}

bool gemm_has_bf16(void) {
    // The values are sets of bits: a processor that has more than AVX512_BF16 has these too.
    unsigned have = (unsigned)dnnl_get_effective_cpu_isa(),
             need = (unsigned)dnnl_cpu_isa_avx512_core_bf16;
    return (have & need) == need;
}

int gemm_open(struct gemm_cache *cache, struct err *err) {
    memset(cache, 0, sizeof *cache);
    dnnl_engine_t engine = NULL;
    dnnl_stream_t stream = NULL;
    if (dnnl_engine_create(&engine, dnnl_cpu, 0) != dnnl_success ||
        dnnl_stream_create(&stream, engine, dnnl_stream_default_flags) != dnnl_success) {
        if (engine) dnnl_engine_destroy(engine);
        return err_set(err, ERR_INTERNAL, "oneDNN %s gives no CPU engine", gemm_version());
    }
    cache->engine = engine;
    cache->stream = stream;
    return 0;
}

static void entry_free(struct gemm_entry *entry) {
    if (!entry) return;
    dnnl_memory_t memories[] = {entry->a, entry->b, entry->c, entry->bias, entry->scratch};
    for (int i = 0; i < 5; i++)
        if (memories[i]) dnnl_memory_destroy(memories[i]);
    if (entry->primitive) dnnl_primitive_destroy(entry->primitive);
    free(entry);
}

// ---- one product ------------------------------------------------------------------------------

static dnnl_data_type_t library_type(enum dtype type) {
    return type == DTYPE_BF16 ? dnnl_bf16 : dnnl_f32;
}

// [rows, columns] stored row by row with `stride`, or transposed so.
static memory_desc matrix_desc(int64_t rows, int64_t columns, int64_t stride, bool transposed,
                               enum dtype type) {
    dnnl_dims_t dims = {rows, columns},
                strides = {transposed ? 1 : stride, transposed ? stride : 1};
    return desc_new(dims, library_type(type), strides);
}

// `b` NULL: the library chooses its layout.
static dnnl_primitive_desc_t product_desc(struct gemm_cache *cache, const struct gemm_spec *spec,
                                          memory_desc_view given_b) {
    dnnl_dims_t b_dims = {spec->inner, spec->columns};
    dnnl_dims_t bias_dims = {1, spec->columns}, bias_strides = {spec->columns, 1};
    memory_desc a =
        matrix_desc(spec->rows, spec->inner, spec->a_stride, spec->a_transposed, spec->in_type);
    memory_desc b =
        given_b ? desc_copy(given_b) : desc_new(b_dims, library_type(spec->in_type), NULL);
    memory_desc c = matrix_desc(spec->rows, spec->columns, spec->c_stride, false, spec->out_type);
    memory_desc bias = spec->bias ? desc_new(bias_dims, dnnl_f32, bias_strides) : NULL;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t ops = NULL;
    dnnl_primitive_desc_t product = NULL;
    bool good =
        a && b && c && (bias || !spec->bias) && dnnl_primitive_attr_create(&attr) == dnnl_success;
    good = good &&
           dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user) == dnnl_success;
    if (good && spec->add) {
        good = dnnl_post_ops_create(&ops) == dnnl_success && add_sum(ops) == dnnl_success &&
               dnnl_primitive_attr_set_post_ops(attr, ops) == dnnl_success;
    }
    if (good && matmul_desc_new(&product, cache->engine, a, b, bias, c, attr) != dnnl_success)
        product = NULL;
    if (ops) dnnl_post_ops_destroy(ops);
    if (attr) dnnl_primitive_attr_destroy(attr);
    desc_free(a);
    desc_free(b);
    desc_free(c);
    desc_free(bias);
    return product;
}

// The packed layout must serve every product with this weight, so it is what the library likes for
// many dense rows, whatever the rows, strides and results of the product at hand. The result is the
// descriptor's owner.
static dnnl_primitive_desc_t packed_layout(struct gemm_cache *cache, const struct gemm_spec *spec) {
    struct gemm_spec typical = {.rows = 1024,
                                .columns = spec->columns,
                                .inner = spec->inner,
                                .a_stride = spec->inner,
                                .c_stride = spec->columns,
                                .in_type = spec->in_type,
                                .out_type = spec->in_type};
    return product_desc(cache, &typical, NULL);
}

static memory_desc plain_layout(const struct gemm_spec *spec) {
    return matrix_desc(spec->inner, spec->columns, spec->b_stride, spec->b_transposed,
                       spec->in_type);
}

static dnnl_primitive_desc_t complete_desc(struct gemm_cache *cache, const struct gemm_spec *spec) {
    dnnl_primitive_desc_t product = NULL;
    if (spec->b_packed) {
        dnnl_primitive_desc_t typical = packed_layout(cache, spec);
        if (!typical) return NULL;
        product = product_desc(cache, spec,
                               dnnl_primitive_desc_query_md(typical, dnnl_query_weights_md, 0));
        dnnl_primitive_desc_destroy(typical);
    } else {
        memory_desc plain = plain_layout(spec);
        if (plain) product = product_desc(cache, spec, plain);
        desc_free(plain);
    }
    return product;
}

// A memory object of the product's operand, without memory yet.
static dnnl_memory_t operand(struct gemm_cache *cache, dnnl_primitive_desc_t product,
                             dnnl_query_t what, int index) {
    dnnl_memory_t memory = NULL;
    memory_desc_view desc = dnnl_primitive_desc_query_md(product, what, index);
    if (!desc || dnnl_memory_create(&memory, desc, cache->engine, DNNL_MEMORY_NONE) != dnnl_success)
        return NULL;
    return memory;
}

static struct gemm_entry *entry_new(struct gemm_cache *cache, const struct gemm_spec *spec) {
    struct gemm_entry *entry = calloc(1, sizeof *entry);
    dnnl_primitive_desc_t product = complete_desc(cache, spec);
    bool good =
        entry && product && dnnl_primitive_create(&entry->primitive, product) == dnnl_success;
    if (good) {
        entry->spec = *spec;
        entry->workspace_bytes =
            desc_bytes(dnnl_primitive_desc_query_md(product, dnnl_query_scratchpad_md, 0));
        entry->a = operand(cache, product, dnnl_query_src_md, 0);
        entry->b = operand(cache, product, dnnl_query_weights_md, 0);
        entry->c = operand(cache, product, dnnl_query_dst_md, 0);
        if (spec->bias) entry->bias = operand(cache, product, dnnl_query_weights_md, 1);
        if (entry->workspace_bytes)
            entry->scratch = operand(cache, product, dnnl_query_scratchpad_md, 0);
        good = entry->a && entry->b && entry->c && (entry->bias || !spec->bias) &&
               (entry->scratch || !entry->workspace_bytes);
    }
    if (product) dnnl_primitive_desc_destroy(product);
    if (good) return entry;
    entry_free(entry);
    return NULL;
}

static bool same_spec(const struct gemm_spec *x, const struct gemm_spec *y) {
    return x->rows == y->rows && x->columns == y->columns && x->inner == y->inner &&
           x->a_stride == y->a_stride && (x->b_packed || x->b_stride == y->b_stride) &&
           x->c_stride == y->c_stride && x->a_transposed == y->a_transposed &&
           (x->b_packed || x->b_transposed == y->b_transposed) && x->b_packed == y->b_packed &&
           x->bias == y->bias && x->add == y->add && x->in_type == y->in_type &&
           x->out_type == y->out_type;
}

struct gemm_entry *gemm_find(struct gemm_cache *cache, const struct gemm_spec *spec) {
    if (cache->last && same_spec(&cache->last->spec, spec)) return cache->last;
    for (int i = 0; i < cache->count; i++) {
        if (same_spec(&cache->entries[i]->spec, spec)) return cache->last = cache->entries[i];
    }
    return NULL;
}

struct gemm_entry *gemm_prepare(struct gemm_cache *cache, const struct gemm_spec *spec,
                                struct err *err) {
    struct gemm_entry *entry = gemm_find(cache, spec);
    if (entry) return entry;
    if (cache->count == cache->capacity) {
        int capacity = cache->capacity ? 2 * cache->capacity : 64;
        struct gemm_entry **grown = realloc(cache->entries, (size_t)capacity * sizeof *grown);
        if (!grown) {
            err_set(err, ERR_MEMORY, "no memory for %d matrix products", capacity);
            return NULL;
        }
        cache->entries = grown;
        cache->capacity = capacity;
    }
    entry = entry_new(cache, spec);
    if (!entry) {
        err_set(err, ERR_INTERNAL,
                "oneDNN %s refuses the product %lld x %lld x %lld (rows, columns, inner) of %s "
                "into %s; try the "
                "compute type f32",
                gemm_version(), (long long)spec->rows, (long long)spec->columns,
                (long long)spec->inner, dtype_name(spec->in_type), dtype_name(spec->out_type));
        return NULL;
    }
    cache->entries[cache->count++] = entry;
    return cache->last = entry;
}

uint64_t gemm_workspace_bytes(const struct gemm_entry *entry) {
    return entry->workspace_bytes;
}

int gemm_run(struct gemm_cache *cache, struct gemm_entry *entry, const void *a, const void *b,
             const float *bias, void *c, void *workspace, struct err *err) {
    dnnl_exec_arg_t args[5];
    int count = 0;
    dnnl_memory_set_data_handle(entry->a, (void *)a);
    dnnl_memory_set_data_handle(entry->b, (void *)b);
    dnnl_memory_set_data_handle(entry->c, c);
    args[count++] = (dnnl_exec_arg_t){DNNL_ARG_SRC, entry->a};
    args[count++] = (dnnl_exec_arg_t){DNNL_ARG_WEIGHTS, entry->b};
    args[count++] = (dnnl_exec_arg_t){DNNL_ARG_DST, entry->c};
    if (entry->bias) {
        dnnl_memory_set_data_handle(entry->bias, (void *)bias);
        args[count++] = (dnnl_exec_arg_t){DNNL_ARG_BIAS, entry->bias};
    }
    if (entry->scratch) {
        dnnl_memory_set_data_handle(entry->scratch, workspace);
        args[count++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, entry->scratch};
    }
    bool good =
        dnnl_primitive_execute(entry->primitive, cache->stream, count, args) == dnnl_success;
    if (dnnl_stream_wait(cache->stream) == dnnl_success && good) return 0;
    return err_set(err, ERR_INTERNAL, "oneDNN %s failed in a product %lld x %lld x %lld",
                   gemm_version(), (long long)entry->spec.rows, (long long)entry->spec.columns,
                   (long long)entry->spec.inner);
}

// ---- packed copies ----------------------------------------------------------------------------

uint64_t gemm_pack_bytes(struct gemm_cache *cache, const struct gemm_spec *spec) {
    dnnl_primitive_desc_t product = packed_layout(cache, spec);
    if (!product) return 0;
    uint64_t bytes = desc_bytes(dnnl_primitive_desc_query_md(product, dnnl_query_weights_md, 0));
    dnnl_primitive_desc_destroy(product);
    return bytes;
}

struct gemm_packing {
    struct gemm_spec spec;
    dnnl_primitive_t primitive;
    dnnl_memory_t from, to;
    struct gemm_packing *next;
};

static void packing_free(struct gemm_packing *packing) {
    if (packing->from) dnnl_memory_destroy(packing->from);
    if (packing->to) dnnl_memory_destroy(packing->to);
    if (packing->primitive) dnnl_primitive_destroy(packing->primitive);
    free(packing);
}

static bool same_packing(const struct gemm_spec *x, const struct gemm_spec *y) {
    return x->columns == y->columns && x->inner == y->inner && x->b_stride == y->b_stride &&
           x->b_transposed == y->b_transposed && x->in_type == y->in_type;
}

static struct gemm_packing *packing_new(struct gemm_cache *cache, const struct gemm_spec *spec) {
    struct gemm_packing *packing = calloc(1, sizeof *packing);
    dnnl_primitive_desc_t product = packed_layout(cache, spec), reorder = NULL;
    memory_desc plain = plain_layout(spec);
    memory_desc_view packed =
        product ? dnnl_primitive_desc_query_md(product, dnnl_query_weights_md, 0) : NULL;
    bool good =
        packing && plain && packed &&
        dnnl_reorder_primitive_desc_create(&reorder, plain, cache->engine, packed, cache->engine,
                                           NULL) == dnnl_success &&
        dnnl_primitive_create(&packing->primitive, reorder) == dnnl_success &&
        dnnl_memory_create(&packing->from, plain, cache->engine, DNNL_MEMORY_NONE) ==
            dnnl_success &&
        dnnl_memory_create(&packing->to, packed, cache->engine, DNNL_MEMORY_NONE) == dnnl_success;
    if (reorder) dnnl_primitive_desc_destroy(reorder);
    if (product) dnnl_primitive_desc_destroy(product);
    desc_free(plain);
    if (!good) {
        if (packing) packing_free(packing);
        return NULL;
    }
    packing->spec = *spec;
    packing->next = cache->packings;
    return cache->packings = packing;
}

int gemm_pack(struct gemm_cache *cache, const struct gemm_spec *spec, const void *plain,
              void *packed, struct err *err) {
    struct gemm_packing *p = cache->packings;
    while (p && !same_packing(&p->spec, spec)) p = p->next;
    if (!p) p = packing_new(cache, spec);
    if (p) {
        dnnl_memory_set_data_handle(p->from, (void *)plain);
        dnnl_memory_set_data_handle(p->to, packed);
        dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, p->from}, {DNNL_ARG_TO, p->to}};
        bool good = dnnl_primitive_execute(p->primitive, cache->stream, 2, args) == dnnl_success;
        dnnl_stream_wait(cache->stream);
        if (good) return 0;
    }
    return err_set(err, ERR_INTERNAL, "oneDNN %s cannot bring a %lld x %lld matrix into its layout",
                   gemm_version(), (long long)spec->inner, (long long)spec->columns);
}

void gemm_close(struct gemm_cache *cache) {
    for (int i = 0; i < cache->count; i++) entry_free(cache->entries[i]);
    free(cache->entries);
    while (cache->packings) {
        struct gemm_packing *next = cache->packings->next;
        packing_free(cache->packings);
        cache->packings = next;
    }
    if (cache->stream) dnnl_stream_destroy(cache->stream);
    if (cache->engine) dnnl_engine_destroy(cache->engine);
    memset(cache, 0, sizeof *cache);
}
