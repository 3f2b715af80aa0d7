/* Computes matrix products by oneDNN, and keeps the code that oneDNN generates in a hash table by shape. */
#include "trainer/model/products.h"

#include "quant/quant.h"

#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/** Functions of the OpenMP runtime that oneDNN links. They are declared here, as only GCC has its header. */
int omp_get_max_threads(void);
void omp_set_num_threads(int n_threads);

/* The key of an entry: all that the generated code depends on. */
typedef struct shape {
    size_t rows, cols, inner, a_stride, b_stride, c_stride;
    float alpha, beta;
    int a_transposed, b_transposed, type;
} shape_t;

typedef struct entry {
    shape_t key;
    int is_made; /* 0: oneDNN cannot compute this shape */
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c;
    dnnl_memory_t scratch; /* NULL: the code needs none */
    struct entry *next;    /* next entry of the same hash bucket */
} entry_t;

#define BUCKETS 256

struct tw_products {
    dnnl_stream_t stream;
    entry_t *buckets[BUCKETS];
    void *scratch; /* [scratch_bytes] scratch that the entries share */
    size_t scratch_bytes;
    float *wide[2]; /* bf16 factors converted to fp32, if oneDNN cannot multiply bf16 on this processor */
    size_t wide_elems[2]; /* allocated elements of `wide` */
    int has_complained;
};

/* ---- the library --------------------------------------------------------------------------------------- */

static dnnl_engine_t library; /* the process's oneDNN engine, never destroyed; NULL: oneDNN failed to start */

static void start_library(void)
{
    if (dnnl_engine_create(&library, dnnl_cpu, 0) != dnnl_success) {
        library = NULL;
    }
}

static dnnl_engine_t library_get(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_library);
    return library;
}

static int has_isa(dnnl_cpu_isa_t isa)
{
    return ((int)dnnl_get_effective_cpu_isa() & (int)isa) == (int)isa;
}

int tw_products_have_bf16(void)
{
    return has_isa(dnnl_cpu_isa_avx512_core_bf16);
}

const char *tw_products_name(void)
{
    static char name[64];
    const dnnl_version_t *version = dnnl_version();
    const char *isa = tw_products_have_bf16()             ? "AVX-512 with bf16"
                      : has_isa(dnnl_cpu_isa_avx512_core) ? "AVX-512"
                      : has_isa(dnnl_cpu_isa_avx2)        ? "AVX2"
                                                          : "what this processor has";
    snprintf(name, sizeof(name), "oneDNN %d.%d.%d, %s", version->major, version->minor, version->patch, isa);
    return name;
}

/* ---- plain C ------------------------------------------------------------------------------------------- */

static float value_at(const tw_matrix_t *matrix, size_t row, size_t col)
{
    size_t i = matrix->transposed ? col * matrix->stride + row : row * matrix->stride + col;
    if (matrix->type == TW_TYPE_FP32) {
        return ((const float *)matrix->at)[i];
    }
    uint32_t bits = (uint32_t)((const uint16_t *)matrix->at)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

void tw_product_plain(const tw_product_t *p)
{
    for (size_t row = 0; row < p->rows; row++) {
        for (size_t col = 0; col < p->cols; col++) {
            float *c = &p->c[row * p->c_stride + col], sum = 0.0f;
            for (size_t i = 0; i < p->inner; i++) {
                sum += value_at(&p->a, row, i) * value_at(&p->b, i, col);
            }
            *c = p->alpha * sum + (p->beta == 0.0f ? 0.0f : p->beta * *c);
        }
    }
}

/* ---- a shape's code ------------------------------------------------------------------------------------ */

static shape_t products_key_of(const tw_product_t *p)
{
    return (shape_t){.rows = p->rows,
                     .cols = p->cols,
                     .inner = p->inner,
                     .a_stride = p->a.stride,
                     .b_stride = p->b.stride,
                     .c_stride = p->c_stride,
                     .alpha = p->alpha,
                     .beta = p->beta,
                     .a_transposed = p->a.transposed,
                     .b_transposed = p->b.transposed,
                     .type = (int)p->a.type};
}

static size_t bucket_of(const shape_t *key)
{
    uint64_t hash = 0;
    const size_t sizes[] = {key->rows,     key->cols,
                            key->inner,    key->a_stride,
                            key->b_stride, (size_t)(2 * key->a_transposed + key->b_transposed)};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        hash = (hash ^ sizes[i]) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return hash % BUCKETS;
}

static int products_describe(dnnl_memory_desc_t *desc, size_t rows, size_t cols, size_t stride,
                             int transposed, int type)
{
    const dnnl_dims_t sizes = {(dnnl_dim_t)rows, (dnnl_dim_t)cols};
    const dnnl_dims_t strides = {transposed ? 1 : (dnnl_dim_t)stride, transposed ? (dnnl_dim_t)stride : 1};
    return dnnl_memory_desc_init_by_strides(desc, 2, sizes, type == TW_TYPE_BF16 ? dnnl_bf16 : dnnl_f32,
                                            strides) == dnnl_success;
}

/** Make the attributes that apply alpha and beta to the sums. NULL: out of memory in oneDNN. */
static dnnl_primitive_attr_t attributes(const shape_t *key)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t after = NULL;
    if (dnnl_primitive_attr_create(&attr) != dnnl_success) {
        return NULL;
    }
    int is_right = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user) == dnnl_success;
    if (key->alpha != 1.0f) {
        is_right = is_right && dnnl_primitive_attr_set_output_scales(attr, 1, 0, &key->alpha) == dnnl_success;
    }
    if (key->beta != 0.0f) {
        is_right = is_right && dnnl_post_ops_create(&after) == dnnl_success &&
                   dnnl_post_ops_append_sum(after, key->beta) == dnnl_success &&
                   dnnl_primitive_attr_set_post_ops(attr, after) == dnnl_success;
        dnnl_post_ops_destroy(after);
    }
    if (!is_right) {
        dnnl_primitive_attr_destroy(attr);
        return NULL;
    }
    return attr;
}

/** Grow the shared scratch. It may move, as entries get its address for each run. */
static int reserve_scratch(tw_products_t *products, size_t n_bytes)
{
    if (n_bytes <= products->scratch_bytes) {
        return 1;
    }
    void *larger = tw_buffer_alloc(n_bytes);
    if (larger) {
        tw_buffer_free(products->scratch);
        products->scratch = larger;
        products->scratch_bytes = n_bytes;
    }
    return larger != NULL;
}

static int make_memory(dnnl_memory_t *memory, const dnnl_memory_desc_t *desc)
{
    return dnnl_memory_create(memory, desc, library_get(), DNNL_MEMORY_NONE) == dnnl_success;
}

static int make_primitive(tw_products_t *products, entry_t *entry, const_dnnl_primitive_desc_t desc)
{
    const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    size_t n_bytes = scratch ? dnnl_memory_desc_get_size(scratch) : 0;
    return reserve_scratch(products, n_bytes) && (n_bytes == 0 || make_memory(&entry->scratch, scratch)) &&
           dnnl_primitive_create(&entry->primitive, desc) == dnnl_success;
}

static int make_entry(tw_products_t *products, entry_t *entry)
{
    const shape_t *key = &entry->key;
    dnnl_memory_desc_t a, b, c;
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_desc_t desc = NULL;
    if (!products_describe(&a, key->rows, key->inner, key->a_stride, key->a_transposed, key->type) ||
        !products_describe(&b, key->inner, key->cols, key->b_stride, key->b_transposed, key->type) ||
        !products_describe(&c, key->rows, key->cols, key->c_stride, 0, TW_TYPE_FP32) ||
        dnnl_matmul_desc_init(&matmul, &a, &b, NULL, &c) != dnnl_success) {
        return 0;
    }
    dnnl_primitive_attr_t attr = attributes(key);
    int is_made =
        attr && dnnl_primitive_desc_create(&desc, &matmul, attr, library_get(), NULL) == dnnl_success;
    is_made = is_made && make_primitive(products, entry, desc) && make_memory(&entry->a, &a) &&
              make_memory(&entry->b, &b) && make_memory(&entry->c, &c);
    if (desc) {
        dnnl_primitive_desc_destroy(desc);
    }
    if (attr) {
        dnnl_primitive_attr_destroy(attr);
    }
    return is_made;
}

static void destroy_entry(entry_t *entry)
{
    dnnl_memory_t memories[] = {entry->a, entry->b, entry->c, entry->scratch};
    for (size_t i = 0; i < sizeof(memories) / sizeof(memories[0]); i++) {
        if (memories[i]) {
            dnnl_memory_destroy(memories[i]);
        }
    }
    if (entry->primitive) {
        dnnl_primitive_destroy(entry->primitive);
    }
    free(entry);
}

static int products_is_same(const shape_t *a, const shape_t *b)
{
    return a->rows == b->rows && a->cols == b->cols && a->inner == b->inner && a->a_stride == b->a_stride &&
           a->b_stride == b->b_stride && a->c_stride == b->c_stride && a->alpha == b->alpha &&
           a->beta == b->beta && a->a_transposed == b->a_transposed && a->b_transposed == b->b_transposed &&
           a->type == b->type;
}

/** Return the entry of a shape, making it at first use. NULL: out of memory. */
static entry_t *find_entry(tw_products_t *products, const shape_t *key)
{
    entry_t **bucket = &products->buckets[bucket_of(key)];
    for (entry_t *entry = *bucket; entry; entry = entry->next) {
        if (products_is_same(&entry->key, key)) {
            return entry;
        }
    }
    entry_t *entry = calloc(1, sizeof(*entry));
    if (entry) {
        entry->key = *key;
        entry->is_made = make_entry(products, entry);
        entry->next = *bucket;
        *bucket = entry;
    }
    return entry;
}

/* ---- the calls ----------------------------------------------------------------------------------------- */

tw_status_t tw_products_create(tw_products_t **out)
{
    tw_products_t *products = calloc(1, sizeof(*products));
    if (!products || !reserve_scratch(products, TW_PRODUCTS_SCRATCH_BYTES)) {
        tw_error("model: out of memory for products");
        free(products);
        return TW_ERR_NO_MEMORY;
    }
    if (!library_get() ||
        dnnl_stream_create(&products->stream, library_get(), dnnl_stream_default_flags) != dnnl_success) {
        tw_error("model: oneDNN does not start on this processor");
        tw_buffer_free(products->scratch);
        free(products);
        return TW_ERR_INTERNAL;
    }
    *out = products;
    return TW_OK;
}

void tw_products_destroy(tw_products_t *products)
{
    if (!products) {
        return;
    }
    for (size_t i = 0; i < BUCKETS; i++) {
        for (entry_t *entry = products->buckets[i], *next; entry; entry = next) {
            next = entry->next;
            destroy_entry(entry);
        }
    }
    dnnl_stream_destroy(products->stream);
    tw_buffer_free(products->scratch);
    free(products->wide[0]);
    free(products->wide[1]);
    free(products);
}

static int run_entry(tw_products_t *products, const entry_t *entry, const tw_product_t *p)
{
    dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, entry->a},
                              {DNNL_ARG_WEIGHTS, entry->b},
                              {DNNL_ARG_DST, entry->c},
                              {DNNL_ARG_SCRATCHPAD, entry->scratch}};
    int is_set = dnnl_memory_set_data_handle(entry->a, (void *)(uintptr_t)p->a.at) == dnnl_success &&
                 dnnl_memory_set_data_handle(entry->b, (void *)(uintptr_t)p->b.at) == dnnl_success &&
                 dnnl_memory_set_data_handle(entry->c, p->c) == dnnl_success;
    if (entry->scratch) {
        is_set = is_set && dnnl_memory_set_data_handle(entry->scratch, products->scratch) == dnnl_success;
    }
    return is_set &&
           dnnl_primitive_execute(entry->primitive, products->stream, entry->scratch ? 4 : 3, args) ==
               dnnl_success &&
           dnnl_stream_wait(products->stream) == dnnl_success;
}

static int run_as_it_is(tw_products_t *products, const tw_product_t *p)
{
    const shape_t key = products_key_of(p);
    const entry_t *entry = find_entry(products, &key);
    return entry && entry->is_made && run_entry(products, entry, p);
}

/** Convert a factor to fp32, in its stored layout, to products->wide[which]. */
static int products_widen(tw_products_t *products, int which, tw_matrix_t *matrix, size_t rows, size_t cols)
{
    size_t n_rows = matrix->transposed ? cols : rows, n_cols = matrix->transposed ? rows : cols;
    if (!tw_grow(&products->wide[which], &products->wide_elems[which], n_rows * n_cols, sizeof(float))) {
        return 0;
    }
    for (size_t i = 0; i < n_rows; i++) {
        tw_convert_to_fp32(matrix->type, (const uint16_t *)matrix->at + i * matrix->stride,
                           products->wide[which] + i * n_cols, n_cols);
    }
    *matrix = (tw_matrix_t){products->wide[which], n_cols, matrix->transposed, TW_TYPE_FP32};
    return 1;
}

/** Compute a bf16 product with factors converted to fp32, as without AVX-512 oneDNN cannot multiply bf16. */
static int run_widened(tw_products_t *products, const tw_product_t *p)
{
    tw_product_t wide = *p;
    return p->a.type == TW_TYPE_BF16 && products_widen(products, 0, &wide.a, p->rows, p->inner) &&
           products_widen(products, 1, &wide.b, p->inner, p->cols) && run_as_it_is(products, &wide);
}

void tw_product_run(tw_products_t *products, const tw_product_t *p)
{
    if (omp_get_max_threads() != 1) {
        omp_set_num_threads(1); /* oneDNN must not start threads: the pool's threads call it */
    }
    if (run_as_it_is(products, p) || run_widened(products, p)) {
        return;
    }
    if (!products->has_complained) {
        tw_warn("model: oneDNN does not multiply (%zu,%zu) by (%zu,%zu); plain C does, which is slow",
                p->rows, p->inner, p->inner, p->cols);
        products->has_complained = 1;
    }
    tw_product_plain(p);
}
