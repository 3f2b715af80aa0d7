/* Computes a matrix's polar factor, approximately: repeated x = x (a + b x'x + c (x'x)^2) moves its singular
 * values towards 1. A matrix whose sides are r <= c takes 2 r r c + r r r multiplications a step. The model's
 * threads share them. */
#include <math.h>
#include <string.h>

#include "trainer/model/orthogonal.h"

typedef struct matrix {
    size_t rows, cols, side; /* side: the smaller of rows and cols */
    float *x, *next;         /* (rows,cols) */
    float *square, *factor;  /* (side,side) */
} matrix_t;

tw_model_orthogonal_t tw_model_orthogonal_of(const tw_model_t *model, size_t rows, size_t cols)
{
    size_t side = rows < cols ? rows : cols;
    return model->device ? model->device->orthogonal(rows, cols)
                         : (tw_model_orthogonal_t){.scratch_elems = rows * cols + 2 * side * side};
}

static tw_matrix_t stored(const float *at, size_t stride)
{
    return (tw_matrix_t){.at = at, .stride = stride, .type = TW_TYPE_FP32};
}

/** Compute square = x x', or x' x if that is smaller. */
static void multiply_by_itself(const tw_compute_t *compute, const matrix_t *m)
{
    tw_matrix_t x = stored(m->x, m->cols), turned = tw_transposed(x);
    int is_wide = m->rows <= m->cols;
    tw_spread_product(compute, &(tw_product_t){.a = is_wide ? x : turned,
                                               .b = is_wide ? turned : x,
                                               .c = m->square,
                                               .c_stride = m->side,
                                               .rows = m->side,
                                               .cols = m->side,
                                               .inner = is_wide ? m->cols : m->rows,
                                               .alpha = 1.0f});
}

static void orthogonal_step(const tw_compute_t *compute, matrix_t *m)
{
    const float a = TW_ORTHOGONAL_A, b = TW_ORTHOGONAL_B, c = TW_ORTHOGONAL_C;
    tw_matrix_t square = stored(m->square, m->side), factor = stored(m->factor, m->side);
    tw_matrix_t x = stored(m->x, m->cols);
    int is_wide = m->rows <= m->cols;
    multiply_by_itself(compute, m);
    memcpy(m->factor, m->square, m->side * m->side * sizeof(*m->factor));
    tw_spread_product(compute, &(tw_product_t){.a = square,
                                               .b = square,
                                               .c = m->factor,
                                               .c_stride = m->side,
                                               .rows = m->side,
                                               .cols = m->side,
                                               .inner = m->side,
                                               .alpha = c,
                                               .beta = b});
    memcpy(m->next, m->x, m->rows * m->cols * sizeof(*m->next));
    tw_spread_product(compute, &(tw_product_t){.a = is_wide ? factor : x,
                                               .b = is_wide ? x : factor,
                                               .c = m->next,
                                               .c_stride = m->cols,
                                               .rows = m->rows,
                                               .cols = m->cols,
                                               .inner = m->side,
                                               .alpha = 1.0f,
                                               .beta = a});
    memcpy(m->x, m->next, m->rows * m->cols * sizeof(*m->x));
}

float tw_orthogonal_scale(const float *x, size_t n_elems)
{
    double sum = 0.0;
    for (size_t i = 0; i < n_elems; i++) {
        sum += (double)x[i] * x[i];
    }
    return (float)(1.0 / (sqrt(sum) + 1e-7));
}

static void orthogonalize(const tw_compute_t *compute, size_t rows, size_t cols, float *x, float *scratch)
{
    matrix_t m = {.rows = rows, .cols = cols, .side = rows < cols ? rows : cols, .x = x, .next = scratch};
    float scale = tw_orthogonal_scale(x, rows * cols);
    m.square = scratch + rows * cols;
    m.factor = m.square + m.side * m.side;
    for (size_t i = 0; i < rows * cols; i++) {
        x[i] *= scale;
    }
    for (int i = 0; i < TW_ORTHOGONAL_STEPS; i++) {
        orthogonal_step(compute, &m);
    }
}

tw_status_t tw_model_orthogonalize(tw_model_t *model, size_t rows, size_t cols, float *x, float *scratch,
                                   void *near)
{
    if (model->device) {
        return model->device->orthogonalize(model, rows, cols, x, scratch, near);
    }
    orthogonalize(&model->compute, rows, cols, x, scratch);
    return TW_OK;
}
