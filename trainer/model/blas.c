/* Some builds of OpenBLAS compute wrong on processors that they do not know; nothing but a comparison shows
 * it. */
#include "trainer/model/blas.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>

static CBLAS_TRANSPOSE transposition(const tw_blas_view_t *view)
{
    return view->transposed ? CblasTrans : CblasNoTrans;
}

void tw_blas_multiply(const tw_blas_product_t *p)
{
    cblas_sgemm(CblasRowMajor, transposition(&p->a), transposition(&p->b), (int)p->rows, (int)p->cols,
                (int)p->inner, p->alpha, p->a.at, (int)p->a.stride, p->b.at, (int)p->b.stride, p->beta, p->c,
                (int)p->c_stride);
}

void tw_linear_forward(const float *x, const float *w, const float *b, size_t n, size_t in, size_t out,
                       int accumulate, float *y)
{
    for (size_t row = 0; row < n; row++) {
        float *y_row = y + row * out;
        for (size_t o = 0; o < out; o++) {
            y_row[o] = accumulate ? y_row[o] + b[o] : b[o];
        }
    }
    tw_blas_multiply(&(tw_blas_product_t){.a = {.at = x, .stride = in},
                                          .b = {.at = w, .stride = out},
                                          .c = y,
                                          .c_stride = out,
                                          .rows = n,
                                          .cols = out,
                                          .inner = in,
                                          .alpha = 1.0f,
                                          .beta = 1.0f});
}

void tw_linear_backward_weights(const float *x, const float *dy, size_t n, size_t in, size_t out, float *dw,
                                float *db)
{
    for (size_t row = 0; row < n; row++) {
        const float *dy_row = dy + row * out;
        for (size_t o = 0; o < out; o++) {
            db[o] += dy_row[o];
        }
    }
    tw_blas_multiply(&(tw_blas_product_t){.a = {.at = x, .stride = in, .transposed = 1},
                                          .b = {.at = dy, .stride = out},
                                          .c = dw,
                                          .c_stride = out,
                                          .rows = in,
                                          .cols = out,
                                          .inner = n,
                                          .alpha = 1.0f,
                                          .beta = 1.0f});
}

void tw_linear_backward_input(const float *dy, const float *w, size_t n, size_t in, size_t out, float *dx)
{
    tw_blas_multiply(&(tw_blas_product_t){.a = {.at = dy, .stride = out},
                                          .b = {.at = w, .stride = out, .transposed = 1},
                                          .c = dx,
                                          .c_stride = in,
                                          .rows = n,
                                          .cols = in,
                                          .inner = out,
                                          .alpha = 1.0f});
}

/* ---- the comparison with plain C ----------------------------------------------------------------------- */

enum { MOST_ROWS = 97, MOST_COLS = 130, MOST_INNER = 65, PADDING = 3 };

typedef struct check_buffers {
    float *a, *b, *c, *before;
} check_buffers_t;

/* Values from -1 to 1 that look random. */
static void fill(float *values, size_t n, uint32_t state)
{
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        values[i] = (float)(state >> 8) * 0x1p-23f - 1.0f;
    }
}

static double element(const tw_blas_view_t *view, size_t row, size_t col)
{
    return view->transposed ? view->at[col * view->stride + row] : view->at[row * view->stride + col];
}

/* fp32 sums of `inner` products in whatever order: inner + 2 roundings at most, each of the sum of
 * magnitudes. */
static int is_right(const tw_blas_product_t *p, const float *before, size_t row, size_t col)
{
    double sum = 0.0, magnitude = 0.0;
    for (size_t i = 0; i < p->inner; i++) {
        double term = element(&p->a, row, i) * element(&p->b, i, col);
        sum += term;
        magnitude += fabs(term);
    }
    double old = before[row * p->c_stride + col];
    double want = p->alpha * sum + p->beta * old;
    double bound =
        (double)(p->inner + 2) * 0x1p-24 * (fabs((double)p->alpha) * magnitude + fabs(p->beta * old));
    return fabs(p->c[row * p->c_stride + col] - want) <= bound;
}

static int product_is_right(tw_blas_multiply_t multiply, tw_blas_product_t *p, const check_buffers_t *buffers)
{
    size_t n_c = p->rows * p->c_stride;
    fill(buffers->before, n_c, 3);
    fill(p->c, n_c, 3);
    multiply(p);
    for (size_t row = 0; row < p->rows; row++) {
        for (size_t col = 0; col < p->cols; col++) {
            if (!is_right(p, buffers->before, row, col)) {
                return 0;
            }
        }
    }
    return 1;
}

/* Small and odd shapes take other paths through a BLAS than large ones; each of the three forms, in parts of
 * matrices. */
static int all_are_right(tw_blas_multiply_t multiply, const check_buffers_t *buffers)
{
    static const size_t shapes[][3] = {
        {1, 1, 1}, {5, 3, 7}, {32, 64, 32}, {64, 1, 65}, {MOST_ROWS, MOST_COLS, MOST_INNER}};
    int right = 1;
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        size_t rows = shapes[s][0], cols = shapes[s][1], inner = shapes[s][2];
        for (int form = 0; form < 3; form++) { /* plain, b transposed, a transposed */
            int a_transposed = form == 2, b_transposed = form == 1;
            tw_blas_product_t product = {
                .a = {buffers->a, (a_transposed ? rows : inner) + PADDING, a_transposed},
                .b = {buffers->b, (b_transposed ? inner : cols) + PADDING, b_transposed},
                .c = buffers->c,
                .c_stride = cols + PADDING,
                .rows = rows,
                .cols = cols,
                .inner = inner,
                .alpha = form == 1 ? 0.125f : 1.0f,
                .beta = form == 0 ? 0.0f : 1.0f};
            right = right && product_is_right(multiply, &product, buffers);
        }
    }
    return right;
}

tw_status_t tw_blas_check(tw_blas_multiply_t multiply)
{
    size_t most = (MOST_COLS + PADDING) * (MOST_COLS + PADDING);
    float *memory = calloc(4 * most, sizeof(*memory));
    if (!memory) {
        tw_error("model: out of memory for the check of OpenBLAS");
        return TW_ERR_NO_MEMORY;
    }
    check_buffers_t buffers = {memory, memory + most, memory + 2 * most, memory + 3 * most};
    fill(buffers.a, most, 1);
    fill(buffers.b, most, 2);
    int right = all_are_right(multiply, &buffers);
    free(memory);
    if (!right) {
        tw_error(
            "model: OpenBLAS multiplies matrices wrong on this processor, which it takes for '%s'; choose "
            "another kernel with OPENBLAS_CORETYPE (Haswell or Sandybridge, for example)",
            openblas_get_corename());
        return TW_ERR_INTERNAL;
    }
    return TW_OK;
}

tw_status_t tw_blas_prepare(void)
{
    if (!getenv("OPENBLAS_NUM_THREADS")) {
        openblas_set_num_threads(1);
    }
    return tw_blas_check(tw_blas_multiply);
}
