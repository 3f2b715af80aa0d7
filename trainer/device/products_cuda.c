/* Products by cuBLASLt. The library is loaded when a model first needs it, so that one binary runs with and
 * without it. For each form of product cuBLASLt is asked once for an algorithm; the answer (a "way") is kept
 * with its descriptors.
 *
 * cuBLASLt's matrices are column-major. It sees a row-major matrix as its transpose, so we ask for d' = b'
 * a'. A bias per column of d is a bias per row of d', which cuBLASLt's epilogue can add. c has d's layout.
 * Tensors are aligned to 256 bytes, so that cuBLASLt may choose any of its kernels. */
#include "trainer/device/products.h"

#if defined(TW_HAVE_CUDA) && __has_include(<cublasLt.h>)

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "quant/quant.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define LIBRARY "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)

#define WORKSPACE_BYTES TW_DEVICE_PRODUCTS_BYTES
#define MOST_ALIGNMENT 256u

#define FUNCTIONS(X)                        \
    X(cublasLtCreate)                       \
    X(cublasLtDestroy)                      \
    X(cublasLtGetStatusString)              \
    X(cublasLtMatmulDescCreate)             \
    X(cublasLtMatmulDescDestroy)            \
    X(cublasLtMatmulDescSetAttribute)       \
    X(cublasLtMatrixLayoutCreate)           \
    X(cublasLtMatrixLayoutDestroy)          \
    X(cublasLtMatmulPreferenceCreate)       \
    X(cublasLtMatmulPreferenceDestroy)      \
    X(cublasLtMatmulPreferenceSetAttribute) \
    X(cublasLtMatmulAlgoGetHeuristic)       \
    X(cublasLtMatmul)

typedef struct api {
#define MEMBER(name) __typeof__(&name) name;
    FUNCTIONS(MEMBER)
#undef MEMBER
} api_t;

/* The properties of a product that the choice of an algorithm depends on. */
typedef struct form {
    size_t rows, cols, inner, a_stride, b_stride, stride;
    uint32_t a_transposed, b_transposed, has_c, has_bias, alignment;
    tw_type_t factors, type;
} form_t;

typedef struct way {
    form_t form;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t first, second, out; /* layouts of b', a' and d' */
    cublasLtMatmulAlgo_t algo;
} way_t;

typedef struct products {
    tw_device_products_t table; /* first, so that a tw_device_products_t * can be cast to products_t * */
    api_t api;
    cublasLtHandle_t handle;
    void *workspace;
    way_t *ways;
    size_t n_ways, max_ways;
} products_t;

/* ---- the library --------------------------------------------------------------------------------------- */

/** Find a function. memcpy is used as ISO C has no cast from an object pointer to a function pointer. */
static tw_status_t cublas_find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof(symbol));
    return symbol ? TW_OK : tw_fail(TW_ERR_UNSUPPORTED, "device: %s lacks %s", LIBRARY, name);
}

static tw_status_t cublas_load(api_t *api)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    tw_status_t status = TW_OK;
    TW_FAIL_IF(!library, TW_ERR_UNSUPPORTED, "device: products need cuBLASLt, which is not here: %s",
               dlerror());
#define FIND(name)       \
    if (status == TW_OK) \
        status = cublas_find(library, #name, &api->name);
    FUNCTIONS(FIND)
#undef FIND
    (void)dlclose(library);
    return status;
}

static tw_status_t cublas_check(const products_t *products, cublasStatus_t status, const char *what)
{
    if (status == CUBLAS_STATUS_SUCCESS) {
        return TW_OK;
    }
    tw_error("device: %s: cuBLASLt error %d (%s)", what, (int)status,
             products->api.cublasLtGetStatusString(status));
    switch (status) {
    case CUBLAS_STATUS_ALLOC_FAILED:
        return TW_ERR_NO_MEMORY;
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_ARCH_MISMATCH:
        return TW_ERR_UNSUPPORTED;
    case CUBLAS_STATUS_INVALID_VALUE:
        return TW_ERR_INVALID;
    default:
        return TW_ERR_CUDA;
    }
}

/* ---- a form of product --------------------------------------------------------------------------------- */

static uint32_t alignment_of(const tw_device_product_t *p)
{
    size_t all = (size_t)p->a.at | (size_t)p->b.at | (size_t)p->c | (size_t)p->d | (size_t)p->bias;
    uint32_t lowest = (uint32_t)(all & (~all + 1));
    return all % MOST_ALIGNMENT == 0 ? MOST_ALIGNMENT : lowest;
}

/** Fill in the form of a product. Forms are compared by memcmp, so padding must be zeroed, too. */
static void cublas_form_of(const tw_device_product_t *p, form_t *form)
{
    memset(form, 0, sizeof(*form));
    form->rows = p->rows;
    form->cols = p->cols;
    form->inner = p->inner;
    form->a_stride = p->a.stride;
    form->b_stride = p->b.stride;
    form->stride = p->stride;
    form->a_transposed = p->a.transposed != 0;
    form->b_transposed = p->b.transposed != 0;
    form->has_c = p->c != NULL;
    form->has_bias = p->bias != NULL;
    form->alignment = alignment_of(p);
    form->factors = p->factors;
    form->type = p->type;
}

static cudaDataType_t type_of(tw_type_t type)
{
    return type == TW_TYPE_FP32 ? CUDA_R_32F : CUDA_R_16BF;
}

/** Make the column-major layout of a row-major factor (rows, cols), which may be stored transposed. */
static tw_status_t factor_layout(const products_t *products, tw_type_t type, size_t rows, size_t cols,
                                 uint32_t transposed, size_t stride, cublasLtMatrixLayout_t *out)
{
    return cublas_check(products,
                        products->api.cublasLtMatrixLayoutCreate(out, type_of(type), transposed ? rows : cols,
                                                                 transposed ? cols : rows, (int64_t)stride),
                        "cublasLtMatrixLayoutCreate");
}

static tw_status_t set(const products_t *products, way_t *way, cublasLtMatmulDescAttributes_t attribute,
                       const void *value, size_t bytes)
{
    return cublas_check(products,
                        products->api.cublasLtMatmulDescSetAttribute(way->desc, attribute, value, bytes),
                        "cublasLtMatmulDescSetAttribute");
}

/** Set the address of the bias. Do nothing if it is NULL. */
static tw_status_t set_bias(const products_t *products, way_t *way, const void *bias)
{
    return bias ? set(products, way, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias)) : TW_OK;
}

/** Make the descriptor. CUBLAS_COMPUTE_32F keeps all bits of fp32 factors, unlike ..._32F_FAST_TF32. */
static tw_status_t cublas_describe(const products_t *products, way_t *way)
{
    const form_t *form = &way->form;
    const cublasOperation_t first = form->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                            second = form->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue = form->has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    TW_TRY(cublas_check(products,
                        products->api.cublasLtMatmulDescCreate(&way->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                        "cublasLtMatmulDescCreate"));
    TW_TRY(set(products, way, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first)));
    TW_TRY(set(products, way, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second)));
    TW_TRY(set(products, way, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)));
    TW_TRY(factor_layout(products, form->factors, form->inner, form->cols, form->b_transposed, form->b_stride,
                         &way->first));
    TW_TRY(factor_layout(products, form->factors, form->rows, form->inner, form->a_transposed, form->a_stride,
                         &way->second));
    return cublas_check(products,
                        products->api.cublasLtMatrixLayoutCreate(&way->out, type_of(form->type), form->cols,
                                                                 form->rows, (int64_t)form->stride),
                        "cublasLtMatrixLayoutCreate");
}

static tw_status_t prefer(const products_t *products, cublasLtMatmulPreference_t preference,
                          cublasLtMatmulPreferenceAttributes_t attribute, const void *value, size_t bytes)
{
    return cublas_check(
        products, products->api.cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, bytes),
        "cublasLtMatmulPreferenceSetAttribute");
}

static tw_status_t cublas_ask(const products_t *products, way_t *way, cublasLtMatmulPreference_t preference)
{
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    /* if an algorithm splits the inner dimension, its parts are added in fp32, so that d is rounded once */
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint64_t room = WORKSPACE_BYTES;
    cublasLtMatmulHeuristicResult_t result;
    int n_results = 0;
    TW_TRY(prefer(products, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof(room)));
    TW_TRY(prefer(products, preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                  sizeof(reductions)));
    for (size_t i = 0; i < sizeof(alignments) / sizeof(alignments[0]); i++) {
        TW_TRY(prefer(products, preference, alignments[i], &way->form.alignment, sizeof(uint32_t)));
    }
    TW_TRY(cublas_check(products,
                        products->api.cublasLtMatmulAlgoGetHeuristic(products->handle, way->desc, way->first,
                                                                     way->second, way->out, way->out,
                                                                     preference, 1, &result, &n_results),
                        "cublasLtMatmulAlgoGetHeuristic"));
    TW_FAIL_IF(n_results == 0 || result.state != CUBLAS_STATUS_SUCCESS, TW_ERR_UNSUPPORTED,
               "device: cuBLASLt knows no product of (%zu,%zu) and (%zu,%zu)", way->form.rows,
               way->form.inner, way->form.inner, way->form.cols);
    way->algo = result.algo;
    return TW_OK;
}

static tw_status_t cublas_choose(const products_t *products, way_t *way)
{
    cublasLtMatmulPreference_t preference;
    TW_TRY(cublas_check(products, products->api.cublasLtMatmulPreferenceCreate(&preference),
                        "cublasLtMatmulPreferenceCreate"));
    tw_status_t status = cublas_ask(products, way, preference);
    (void)products->api.cublasLtMatmulPreferenceDestroy(preference);
    return status;
}

static void forget(const products_t *products, way_t *way)
{
    const cublasLtMatrixLayout_t layouts[] = {way->first, way->second, way->out};
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        if (layouts[i]) {
            (void)products->api.cublasLtMatrixLayoutDestroy(layouts[i]);
        }
    }
    if (way->desc) {
        (void)products->api.cublasLtMatmulDescDestroy(way->desc);
    }
}

static tw_status_t cublas_grow(products_t *products)
{
    size_t max = products->max_ways > 0 ? 2 * products->max_ways : 64;
    way_t *ways = realloc(products->ways, max * sizeof(*ways));
    TW_FAIL_IF(!ways, TW_ERR_NO_MEMORY, "device: out of memory for forms of products");
    products->ways = ways;
    products->max_ways = max;
    return TW_OK;
}

static tw_status_t add_way(products_t *products, const form_t *form, const void *bias, way_t **out)
{
    way_t way = {.form = *form};
    if (products->n_ways == products->max_ways) {
        TW_TRY(cublas_grow(products));
    }
    tw_status_t status = cublas_describe(products, &way);
    /* set the bias before the algorithm is chosen, as the choice depends on the bias's alignment */
    status = status == TW_OK ? set_bias(products, &way, bias) : status;
    status = status == TW_OK ? cublas_choose(products, &way) : status;
    if (status != TW_OK) {
        forget(products, &way);
        return status;
    }
    *out = &products->ways[products->n_ways++];
    **out = way;
    return TW_OK;
}

/** Return the way of a product, asking cuBLASLt at first use of its form. A model has some tens of forms. */
static tw_status_t way_of(products_t *products, const tw_device_product_t *product, way_t **out)
{
    form_t form;
    cublas_form_of(product, &form);
    for (size_t i = 0; i < products->n_ways; i++) {
        if (memcmp(&products->ways[i].form, &form, sizeof(form)) == 0) {
            *out = &products->ways[i];
            return TW_OK;
        }
    }
    return add_way(products, &form, product->bias, out);
}

/* ---- the table ----------------------------------------------------------------------------------------- */

static tw_status_t cublas_run(tw_device_products_t *table, const tw_device_product_t *product,
                              tw_stream_t stream)
{
    products_t *products = (products_t *)table;
    const float scale = tw_device_scale_of(product->scale),
                c_scale = product->c ? tw_device_scale_of(product->c_scale) : 0.0f;
    way_t *way;
    TW_TRY(tw_device_product_check(product));
    if (product->rows == 0 || product->cols == 0) {
        return TW_OK;
    }
    TW_TRY(way_of(products, product, &way));
    TW_TRY(set_bias(products, way, product->bias));
    return cublas_check(products,
                        products->api.cublasLtMatmul(
                            products->handle, way->desc, &scale, product->b.at, way->first, product->a.at,
                            way->second, &c_scale, product->c ? product->c : product->d, way->out, product->d,
                            way->out, &way->algo, products->workspace, WORKSPACE_BYTES, (cudaStream_t)stream),
                        "cublasLtMatmul");
}

static void cublas_destroy(tw_device_products_t *table)
{
    products_t *products = (products_t *)table;
    for (size_t i = 0; i < products->n_ways; i++) {
        forget(products, &products->ways[i]);
    }
    if (products->handle) {
        (void)products->api.cublasLtDestroy(products->handle);
    }
    if (products->workspace) {
        (void)tw_quant_cuda_status(cudaFree(products->workspace), "cudaFree");
    }
    free(products->ways);
    free(products);
}

tw_status_t tw_device_products_create(tw_device_products_t **out)
{
    products_t *products = calloc(1, sizeof(*products));
    TW_FAIL_IF(!products, TW_ERR_NO_MEMORY, "device: out of memory for products");
    products->table =
        (tw_device_products_t){.run = cublas_run, .destroy = cublas_destroy, .memory_bytes = WORKSPACE_BYTES};
    tw_status_t status = cublas_load(&products->api);
    if (status == TW_OK) {
        status = cublas_check(products, products->api.cublasLtCreate(&products->handle), "cublasLtCreate");
    }
    if (status == TW_OK) {
        status = tw_quant_cuda_status(cudaMalloc(&products->workspace, WORKSPACE_BYTES), "cudaMalloc");
    }
    if (status != TW_OK) {
        cublas_destroy(&products->table);
        return status;
    }
    *out = &products->table;
    return TW_OK;
}

#else

tw_status_t tw_device_products_create(tw_device_products_t **out)
{
    *out = NULL;
#ifdef TW_HAVE_CUDA
    tw_error("device: products on a GPU are not there: CUDA had no cublasLt.h when this was built");
#else
    tw_error("device: products on a GPU are not there: no CUDA was found when this was built");
#endif
    return TW_ERR_UNSUPPORTED;
}

#endif
