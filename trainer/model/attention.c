/* Causal attention, a head and a tile of rows at a time: a row of the T x T matrix needs the columns up to
 * its own only, or so many of them as the window is wide. */
#include "trainer/model/attention.h"

#include <math.h>
#include <string.h>

enum { TILE_ROWS = 64 };

/* Rows first .. first + rows - 1 of a head's matrix; columns from .. from + cols - 1 of them are not all
 * zero. */
typedef struct tile {
    size_t first, rows, from, cols;
} tile_t;

/* One head of one sequence. */
typedef struct head {
    tw_products_t *products;
    const float *q, *k, *v; /* (T,D), qkv_stride apart */
    const float *dy;        /* (T,D), y_stride apart */
    float *y;
    float *dq, *dk, *dv; /* (T,D), qkv_stride apart */
    size_t seq_len, width, window;
    size_t qkv_stride, y_stride;
    float factor; /* 1 / sqrt(D) */
} head_t;

size_t tw_attention_scratch_elems(size_t seq_len)
{
    return 2 * TILE_ROWS * seq_len;
}

static size_t qkv_width(const tw_attention_shape_t *shape)
{
    return (shape->heads + 2 * shape->kv_heads) * shape->width;
}

/* Heads of q that share one of k and v lie side by side. */
static head_t head_of(tw_products_t *products, const tw_attention_shape_t *shape, const float *qkv, size_t b, size_t h)
{
    size_t stride = qkv_width(shape), width = shape->width;
    size_t shared = h / (shape->heads / shape->kv_heads);
    const float *at = qkv + b * shape->seq_len * stride;
    return (head_t){.products = products,
                    .q = at + h * width,
                    .k = at + (shape->heads + shared) * width,
                    .v = at + (shape->heads + shape->kv_heads + shared) * width,
                    .seq_len = shape->seq_len,
                    .width = width,
                    .window = shape->window,
                    .qkv_stride = stride,
                    .y_stride = shape->heads * width,
                    .factor = 1.0f / sqrtf((float)width)};
}

/* The first column that a row sees. */
static size_t first_seen(const head_t *head, size_t row)
{
    return head->window > 0 && row >= head->window ? row - head->window + 1 : 0;
}

static tile_t tile_at(const head_t *head, size_t first)
{
    size_t left = head->seq_len - first, from = first_seen(head, first);
    size_t rows = left < TILE_ROWS ? left : TILE_ROWS;
    return (tile_t){first, rows, from, first + rows - from};
}

static tw_matrix_t view(const float *at, size_t stride)
{
    return (tw_matrix_t){.at = at, .stride = stride};
}

static tw_matrix_t transposed(const float *at, size_t stride)
{
    return (tw_matrix_t){.at = at, .stride = stride, .transposed = 1};
}

/* What a row of a tile sees: columns begin .. end - 1 of the tile's. */
typedef struct seen {
    size_t begin, end;
} seen_t;

static seen_t seen_by(const head_t *head, tile_t tile, size_t row)
{
    size_t at = tile.first + row;
    return (seen_t){first_seen(head, at) - tile.from, at + 1 - tile.from};
}

static void clear_unseen(float *row, size_t cols, seen_t seen)
{
    memset(row, 0, seen.begin * sizeof(*row));
    memset(row + seen.end, 0, (cols - seen.end) * sizeof(*row));
}

/* p (rows, cols) = softmax of (Q K' / sqrt(D)) of what is seen, 0 elsewhere. */
static void probabilities(const head_t *head, tile_t tile, float *p)
{
    tw_product_run(
        head->products, &(tw_product_t){.a = view(head->q + tile.first * head->qkv_stride, head->qkv_stride),
                             .b = transposed(head->k + tile.from * head->qkv_stride, head->qkv_stride),
                             .c = p,
                             .c_stride = tile.cols,
                             .rows = tile.rows,
                             .cols = tile.cols,
                             .inner = head->width,
                             .alpha = head->factor});
    for (size_t row = 0; row < tile.rows; row++) {
        float *p_row = p + row * tile.cols;
        seen_t seen = seen_by(head, tile, row);
        tw_kernels()->softmax_row(p_row + seen.begin, seen.end - seen.begin);
        clear_unseen(p_row, tile.cols, seen);
    }
}

static void head_forward(const head_t *head, float *p)
{
    for (size_t first = 0; first < head->seq_len; first += TILE_ROWS) {
        tile_t tile = tile_at(head, first);
        probabilities(head, tile, p);
        tw_product_run(
            head->products, &(tw_product_t){.a = view(p, tile.cols),
                                 .b = view(head->v + tile.from * head->qkv_stride, head->qkv_stride),
                                 .c = head->y + first * head->y_stride,
                                 .c_stride = head->y_stride,
                                 .rows = tile.rows,
                                 .cols = head->width,
                                 .inner = tile.cols,
                                 .alpha = 1.0f});
    }
}

void tw_attention_forward(tw_products_t *products, const tw_attention_shape_t *shape, const float *qkv, float *scratch, float *y)
{
    for (size_t b = 0; b < shape->batch; b++) {
        for (size_t h = 0; h < shape->heads; h++) {
            head_t head = head_of(products, shape, qkv, b, h);
            head.y = y + b * shape->seq_len * head.y_stride + h * head.width;
            head_forward(&head, scratch);
        }
    }
}

/* dp becomes the gradient by the scores: p * (dp - sum over the row of p * dp) / sqrt(D). */
static void softmax_backward(const head_t *head, tile_t tile, const float *p, float *dp)
{
    for (size_t row = 0; row < tile.rows; row++) {
        const float *p_row = p + row * tile.cols;
        float *dp_row = dp + row * tile.cols;
        seen_t seen = seen_by(head, tile, row);
        tw_kernels()->softmax_row_backward(p_row + seen.begin, seen.end - seen.begin, head->factor,
                                           dp_row + seen.begin);
        clear_unseen(dp_row, tile.cols, seen);
    }
}

/* out (cols, D), of the tile's columns, += m' (cols, rows) x (rows, D) */
static void add_to_columns(const head_t *head, tile_t tile, const float *m, const float *x, size_t x_stride,
                           float *out)
{
    tw_product_run(head->products, &(tw_product_t){.a = transposed(m, tile.cols),
                                          .b = view(x, x_stride),
                                          .c = out + tile.from * head->qkv_stride,
                                          .c_stride = head->qkv_stride,
                                          .rows = tile.cols,
                                          .cols = head->width,
                                          .inner = tile.rows,
                                          .alpha = 1.0f,
                                          .beta = 1.0f});
}

/* p, dp: (rows, cols) */
static void tile_backward(const head_t *head, tile_t tile, float *p, float *dp)
{
    const float *dy = head->dy + tile.first * head->y_stride;
    probabilities(head, tile, p);
    add_to_columns(head, tile, p, dy, head->y_stride, head->dv);
    tw_product_run(
        head->products, &(tw_product_t){.a = view(dy, head->y_stride), /* dp = dy V' */
                             .b = transposed(head->v + tile.from * head->qkv_stride, head->qkv_stride),
                             .c = dp,
                             .c_stride = tile.cols,
                             .rows = tile.rows,
                             .cols = tile.cols,
                             .inner = head->width,
                             .alpha = 1.0f});
    softmax_backward(head, tile, p, dp);
    tw_product_run(head->products, &(tw_product_t){.a = view(dp, tile.cols), /* dq = ds K */
                                          .b = view(head->k + tile.from * head->qkv_stride, head->qkv_stride),
                                          .c = head->dq + tile.first * head->qkv_stride,
                                          .c_stride = head->qkv_stride,
                                          .rows = tile.rows,
                                          .cols = head->width,
                                          .inner = tile.cols,
                                          .alpha = 1.0f});
    add_to_columns(head, tile, dp, head->q + tile.first * head->qkv_stride, head->qkv_stride, head->dk);
}

void tw_attention_backward(tw_products_t *products, const tw_attention_shape_t *shape, const float *qkv, const float *dy,
                           float *scratch, float *dqkv)
{
    float *p = scratch, *dp = scratch + TILE_ROWS * shape->seq_len;
    memset(dqkv, 0, shape->batch * shape->seq_len * qkv_width(shape) * sizeof(*dqkv));
    for (size_t b = 0; b < shape->batch; b++) {
        for (size_t h = 0; h < shape->heads; h++) {
            head_t head = head_of(products, shape, qkv, b, h);
            head.dy = dy + b * shape->seq_len * head.y_stride + h * head.width;
            head.dq = dqkv + (head.q - qkv);
            head.dk = dqkv + (head.k - qkv);
            head.dv = dqkv + (head.v - qkv);
            for (size_t first = 0; first < shape->seq_len; first += TILE_ROWS) {
                tile_backward(&head, tile_at(&head, first), p, dp);
            }
        }
    }
}
