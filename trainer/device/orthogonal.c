/* Makes matrices orthogonal on the device, as trainer/model/orthogonal.c does on this processor.
 * A matrix with sides r <= c is copied in and out at 2 bytes an element, and a step takes 2 r (2 r c + r r)
 * operations. At r = c = 4096 the five steps are 2.1e12 operations: some 4 ms on a GPU with 5e14 a second,
 * but seconds on a processor. Copying 67 MB over a bus of 25 GB/s takes 3 ms. */
#include "trainer/model/orthogonal.h"
#include "quant/quant.h"
#include "trainer/device/state.h"

/* A matrix and its scratch. All arrays are bf16 and row-major without gaps. */
typedef struct matrix {
    size_t rows, cols, side;   /* side: the smaller of rows and cols */
    uint16_t *x, *next;        /* (rows,cols) */
    uint16_t *square, *factor; /* (side,side) */
} matrix_t;

static size_t device_orthogonal_aligned(size_t n)
{
    return (n + TW_DEVICE_ALIGN_ELEMS - 1) / TW_DEVICE_ALIGN_ELEMS * TW_DEVICE_ALIGN_ELEMS;
}

tw_model_orthogonal_t tw_device_orthogonal_of(size_t rows, size_t cols)
{
    size_t side = rows < cols ? rows : cols;
    return (tw_model_orthogonal_t){
        .scratch_elems = (rows * cols + 1) / 2,
        .near_bytes = 2 * (device_orthogonal_aligned(rows * cols) + device_orthogonal_aligned(side * side)) *
                      sizeof(uint16_t)};
}

static tw_status_t device_orthogonal_multiply(tw_device_model_t *m, tw_device_product_t product)
{
    product.factors = product.type = TW_TYPE_BF16;
    return m->device->products->run(m->device->products, &product, m->compute);
}

/** Compute square = x x', or x' x if that is smaller. */
static tw_status_t square(tw_device_model_t *m, const matrix_t *of)
{
    int is_tall = of->rows > of->cols;
    return device_orthogonal_multiply(
        m, (tw_device_product_t){.a = {.at = of->x, .stride = of->cols, .transposed = is_tall},
                                 .b = {.at = of->x, .stride = of->cols, .transposed = !is_tall},
                                 .d = of->square,
                                 .stride = of->side,
                                 .rows = of->side,
                                 .cols = of->side,
                                 .inner = is_tall ? of->rows : of->cols});
}

/** Compute next = x * factor (or factor * x), factor = a + b square + c square^2; then swap x and next. */
static tw_status_t device_orthogonal_step(tw_device_model_t *m, matrix_t *of)
{
    const tw_device_factor_t of_square = {.at = of->square, .stride = of->side},
                             x = {.at = of->x, .stride = of->cols},
                             factor = {.at = of->factor, .stride = of->side};
    int is_tall = of->rows > of->cols;
    uint16_t *next = of->next;
    TW_TRY(square(m, of));
    TW_TRY(device_orthogonal_multiply(m, (tw_device_product_t){.a = of_square,
                                                               .b = of_square,
                                                               .c = of->square,
                                                               .d = of->factor,
                                                               .scale = TW_ORTHOGONAL_C,
                                                               .c_scale = TW_ORTHOGONAL_B,
                                                               .stride = of->side,
                                                               .rows = of->side,
                                                               .cols = of->side,
                                                               .inner = of->side}));
    TW_TRY(device_orthogonal_multiply(m, (tw_device_product_t){.a = is_tall ? x : factor,
                                                               .b = is_tall ? factor : x,
                                                               .c = of->x,
                                                               .d = next,
                                                               .c_scale = TW_ORTHOGONAL_A,
                                                               .stride = of->cols,
                                                               .rows = of->rows,
                                                               .cols = of->cols,
                                                               .inner = of->side}));
    of->next = of->x;
    of->x = next;
    return TW_OK;
}

static tw_status_t device_orthogonal_orthogonalize(tw_device_model_t *m, matrix_t *of, uint16_t *staged)
{
    size_t bytes = of->rows * of->cols * sizeof(*staged);
    TW_TRY(m->device->use(m->device));
    TW_TRY(m->device->copy(m->device, of->x, staged, bytes, m->compute));
    for (int i = 0; i < TW_ORTHOGONAL_STEPS; i++) {
        TW_TRY(device_orthogonal_step(m, of));
    }
    TW_TRY(m->device->copy(m->device, staged, of->x, bytes, m->compute));
    return tw_device_wait_for(m, m->compute);
}

tw_status_t tw_device_orthogonalize(tw_model_t *model, size_t rows, size_t cols, float *x, float *scratch,
                                    void *near)
{
    tw_device_model_t *m = (tw_device_model_t *)model;
    matrix_t of = {.rows = rows, .cols = cols, .side = rows < cols ? rows : cols, .x = near};
    uint16_t *staged = (uint16_t *)scratch;
    size_t n = rows * cols;
    of.next = of.x + device_orthogonal_aligned(n);
    of.square = of.next + device_orthogonal_aligned(n);
    of.factor = of.square + device_orthogonal_aligned(of.side * of.side);
    if (!tw_device_is_well(m)) {
        return m->status;
    }
    tw_convert_from_fp32(TW_TYPE_BF16, x, tw_orthogonal_scale(x, n), staged, n);
    tw_device_note(m, device_orthogonal_orthogonalize(m, &of, staged));
    tw_convert_to_fp32(TW_TYPE_BF16, staged, x, n);
    return m->status;
}
