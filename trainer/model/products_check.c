/* Compares products with plain C, as some builds of oneDNN silently compute wrong on newer processors. */
#include "trainer/model/products.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROWS = 97, MOST_COLS = 130, MOST_INNER = 66, PADDING = 4 };

typedef struct check_buffers {
    float *a, *b, *c, *before;
    uint16_t *a16, *b16; /* a and b rounded to bf16 */
} check_buffers_t;

/** Fill with pseudo-random values from -1 to 1 that bf16 represents exactly. */
static void products_fill(float *values, size_t n, uint32_t state)
{
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        values[i] = (float)(state >> 24) * 0x1p-7f - 1.0f;
    }
}

static void products_narrow(const float *values, size_t n, uint16_t *to)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof(bits));
        to[i] = (uint16_t)(bits >> 16);
    }
}

static double element(const float *at, const tw_matrix_t *matrix, size_t row, size_t col)
{
    return matrix->transposed ? at[col * matrix->stride + row] : at[row * matrix->stride + col];
}

/** Return 1 if an element is right within rounding. In any order, an fp32 sum of `inner` products has at most
 *  inner + 2 roundings, each relative to the sum of magnitudes. Products of bf16 are exact in fp32. */
static int is_right(const tw_product_t *p, const check_buffers_t *buffers, size_t row, size_t col)
{
    double sum = 0.0, magnitude = 0.0;
    for (size_t i = 0; i < p->inner; i++) {
        double term = element(buffers->a, &p->a, row, i) * element(buffers->b, &p->b, i, col);
        sum += term;
        magnitude += fabs(term);
    }
    double old = buffers->before[row * p->c_stride + col];
    double want = p->alpha * sum + p->beta * old;
    double bound =
        (double)(p->inner + 2) * 0x1p-24 * (fabs((double)p->alpha) * magnitude + fabs(p->beta * old));
    return fabs(p->c[row * p->c_stride + col] - want) <= bound;
}

typedef struct check {
    tw_product_run_t run;
    tw_products_t *products;
    check_buffers_t buffers;
} check_t;

static int product_is_right(const check_t *check, const tw_product_t *p)
{
    size_t n_c = p->rows * p->c_stride;
    products_fill(check->buffers.before, n_c, 3);
    products_fill(p->c, n_c, 3);
    check->run(check->products, p);
    for (size_t row = 0; row < p->rows; row++) {
        for (size_t col = 0; col < p->cols; col++) {
            if (!is_right(p, &check->buffers, row, col)) {
                return 0;
            }
        }
    }
    return 1;
}

/** Check all shapes in three forms (transpositions), on parts of larger matrices. oneDNN uses other code for
 *  small and odd shapes than for large ones. */
static int all_are_right(const check_t *check, tw_type_t type)
{
    static const size_t shapes[][3] = {
        {1, 1, 1}, {5, 3, 7}, {32, 64, 32}, {64, 1, 65}, {MOST_ROWS, MOST_COLS, MOST_INNER}};
    const check_buffers_t *buffers = &check->buffers;
    const void *a = type == TW_TYPE_BF16 ? (const void *)buffers->a16 : buffers->a;
    const void *b = type == TW_TYPE_BF16 ? (const void *)buffers->b16 : buffers->b;
    int right = 1;
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        size_t rows = shapes[s][0], cols = shapes[s][1], inner = shapes[s][2];
        for (int form = 0; form < 3; form++) { /* plain, b transposed, a transposed */
            int a_transposed = form == 2, b_transposed = form == 1;
            tw_product_t product = {.a = {a, (a_transposed ? rows : inner) + PADDING, a_transposed, type},
                                    .b = {b, (b_transposed ? inner : cols) + PADDING, b_transposed, type},
                                    .c = buffers->c,
                                    .c_stride = cols + PADDING,
                                    .rows = rows,
                                    .cols = cols,
                                    .inner = inner,
                                    .alpha = form == 1 ? 0.125f : 1.0f,
                                    .beta = form == 0 ? 0.0f : 1.0f};
            right = right && product_is_right(check, &product);
        }
    }
    return right;
}

static tw_status_t check_all(check_t *check)
{
    size_t most = (MOST_COLS + PADDING) * (MOST_COLS + PADDING);
    float *memory = calloc(5 * most, sizeof(*memory));
    TW_FAIL_IF(!memory, TW_ERR_NO_MEMORY, "model: out of memory for the check of products");
    uint16_t *narrowed = (uint16_t *)(memory + 4 * most);
    check->buffers = (check_buffers_t){memory,   memory + most,  memory + 2 * most, memory + 3 * most,
                                       narrowed, narrowed + most};
    products_fill(check->buffers.a, most, 1);
    products_fill(check->buffers.b, most, 2);
    products_narrow(check->buffers.a, most, check->buffers.a16);
    products_narrow(check->buffers.b, most, check->buffers.b16);
    int right = all_are_right(check, TW_TYPE_FP32) &&
                (!tw_products_have_bf16() || all_are_right(check, TW_TYPE_BF16));
    free(memory);
    TW_FAIL_IF(!right, TW_ERR_INTERNAL,
               "model: %s multiplies matrices wrong on this processor; choose another kind of its code "
               "with DNNL_MAX_CPU_ISA (AVX2 or AVX512_CORE, for example)",
               tw_products_name());
    return TW_OK;
}

tw_status_t tw_products_check(tw_product_run_t run)
{
    check_t check = {.run = run};
    TW_TRY(tw_products_create(&check.products));
    tw_status_t status = check_all(&check);
    tw_products_destroy(check.products);
    return status;
}
