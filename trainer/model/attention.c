/* Causal attention, a head and a tile of rows at a time. Row i of the T x T score matrix needs only columns
 * up to i that are inside the window and in token i's document. */
#include "trainer/model/attention.h"

#include <math.h>
#include <string.h>

enum { TILE_ROWS = 64 };

/* Rows first .. first + rows - 1 of a head's score matrix, and columns from .. from + cols - 1. Probabilities
 * outside these columns are 0. */
typedef struct tile {
    size_t first, rows, from, cols;
} tile_t;

/* One head of one sequence. Factors are fp32 or bf16. */
typedef struct head {
    const tw_compute_t *compute;
    tw_products_t *products; /* the calling thread's */
    tw_matrix_t q, k, v;     /* (T,D) */
    tw_matrix_t dy;          /* (T,D) */
    float *y;                /* (T,D), y_stride apart */
    float *dq, *dk, *dv;     /* (T,D), qkv_stride apart */
    size_t seq_len, width, window;
    const int32_t *starts; /* (T), or NULL */
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

/* Offsets of a head's q, k and v in qkv. Consecutive query heads share a k/v head. */
typedef struct places {
    size_t q, k, v;
} places_t;

static places_t places_of(const tw_attention_shape_t *shape, size_t b, size_t h)
{
    size_t width = shape->width, shared = h / (shape->heads / shape->kv_heads);
    size_t at = b * shape->seq_len * qkv_width(shape);
    return (places_t){.q = at + h * width,
                      .k = at + (shape->heads + shared) * width,
                      .v = at + (shape->heads + shape->kv_heads + shared) * width};
}

static head_t head_of(const tw_compute_t *compute, const tw_attention_shape_t *shape, tw_matrix_t qkv,
                      size_t b, places_t places)
{
    return (head_t){.compute = compute,
                    .q = tw_factor_from(qkv, places.q),
                    .k = tw_factor_from(qkv, places.k),
                    .v = tw_factor_from(qkv, places.v),
                    .seq_len = shape->seq_len,
                    .width = shape->width,
                    .window = shape->window,
                    .starts = shape->starts ? shape->starts + b * shape->seq_len : NULL,
                    .qkv_stride = qkv.stride,
                    .y_stride = shape->heads * shape->width,
                    .factor = 1.0f / sqrtf((float)shape->width)};
}

static tw_matrix_t qkv_factor(const tw_compute_t *compute, const tw_attention_shape_t *shape,
                              const float *qkv)
{
    size_t stride = qkv_width(shape);
    return tw_factor(compute, qkv, shape->batch * shape->seq_len * stride, stride, compute->narrow);
}

/** Return the first column (token) that a row attends to. */
static size_t first_seen(const head_t *head, size_t row)
{
    size_t start = head->starts ? (size_t)head->starts[row] : 0;
    size_t near = head->window > 0 && row >= head->window ? row - head->window + 1 : 0;
    return near > start ? near : start;
}

static tile_t tile_at(const head_t *head, size_t first)
{
    size_t left = head->seq_len - first, from = first_seen(head, first);
    size_t rows = left < TILE_ROWS ? left : TILE_ROWS;
    return (tile_t){first, rows, from, first + rows - from};
}

static tw_matrix_t rows_from(tw_matrix_t factor, size_t row)
{
    return tw_factor_from(factor, row * factor.stride);
}

/** Return m (rows, cols) of a tile as a product's factor. In bf16 it is rounded in place. */
static tw_matrix_t tile_factor(const head_t *head, tile_t tile, float *m)
{
    if (head->compute->type == TW_TYPE_FP32) {
        return (tw_matrix_t){.at = m, .stride = tile.cols, .type = TW_TYPE_FP32};
    }
    for (size_t row = 0; row < tile.rows; row++) {
        head->compute->kernels->narrow_in_place(m + row * tile.cols, tile.cols);
    }
    return (tw_matrix_t){.at = m, .stride = 2 * tile.cols, .type = TW_TYPE_BF16};
}

/* The columns that a row attends to: begin .. end - 1, counted from the tile's first column. */
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

/** Compute p (rows, cols) = softmax(Q K' / sqrt(D)) over the columns attended to, and 0 elsewhere. */
static void probabilities(const head_t *head, tile_t tile, float *p)
{
    tw_product_run(head->products, &(tw_product_t){.a = rows_from(head->q, tile.first),
                                                   .b = tw_transposed(rows_from(head->k, tile.from)),
                                                   .c = p,
                                                   .c_stride = tile.cols,
                                                   .rows = tile.rows,
                                                   .cols = tile.cols,
                                                   .inner = head->width,
                                                   .alpha = head->factor});
    for (size_t row = 0; row < tile.rows; row++) {
        float *p_row = p + row * tile.cols;
        seen_t seen = seen_by(head, tile, row);
        head->compute->kernels->softmax_row(p_row + seen.begin, seen.end - seen.begin);
        clear_unseen(p_row, tile.cols, seen);
    }
}

/** Compute out[tile's rows] (rows, D) = m (rows, cols) * x[tile's columns] (cols, D); out and x are (T,D). */
static void multiply_columns(const head_t *head, tile_t tile, tw_matrix_t m, tw_matrix_t x, float *out,
                             size_t stride)
{
    tw_product_run(head->products, &(tw_product_t){.a = m,
                                                   .b = rows_from(x, tile.from),
                                                   .c = out + tile.first * stride,
                                                   .c_stride = stride,
                                                   .rows = tile.rows,
                                                   .cols = head->width,
                                                   .inner = tile.cols,
                                                   .alpha = 1.0f});
}

static void head_forward(const head_t *head, float *p)
{
    for (size_t first = 0; first < head->seq_len; first += TILE_ROWS) {
        tile_t tile = tile_at(head, first);
        probabilities(head, tile, p);
        multiply_columns(head, tile, tile_factor(head, tile, p), head->v, head->y, head->y_stride);
    }
}

/* Arguments of a call; an item is a head of a sequence, or a k/v head in backward. */
typedef struct call {
    const tw_compute_t *compute;
    const tw_attention_shape_t *shape;
    tw_matrix_t qkv, dy;
    float *scratch; /* tw_attention_scratch_elems for each thread */
    float *y, *dqkv;
} call_t;

static float *scratch_of(const call_t *call, int thread)
{
    return call->scratch + (size_t)thread * tw_attention_scratch_elems(call->shape->seq_len);
}

/** Compute the forward pass of one head of one sequence. */
static void forward_item(void *ctx, size_t item, int thread)
{
    const call_t *call = ctx;
    const tw_attention_shape_t *shape = call->shape;
    size_t b = item / shape->heads, h = item % shape->heads;
    head_t head = head_of(call->compute, shape, call->qkv, b, places_of(shape, b, h));
    head.products = call->compute->products[thread];
    head.y = call->y + b * shape->seq_len * head.y_stride + h * head.width;
    head_forward(&head, scratch_of(call, thread));
}

void tw_attention_forward(const tw_compute_t *compute, const tw_attention_shape_t *shape, const float *qkv,
                          float *scratch, float *y)
{
    call_t call = {.compute = compute,
                   .shape = shape,
                   .qkv = qkv_factor(compute, shape, qkv),
                   .scratch = scratch,
                   .y = y};
    tw_pool_run(compute->pool, shape->batch * shape->heads, forward_item, &call);
}

/** Replace dp by the scores' gradient: p * (dp - sum over the row of p * dp) / sqrt(D). */
static void softmax_backward(const head_t *head, tile_t tile, const float *p, float *dp)
{
    for (size_t row = 0; row < tile.rows; row++) {
        const float *p_row = p + row * tile.cols;
        float *dp_row = dp + row * tile.cols;
        seen_t seen = seen_by(head, tile, row);
        head->compute->kernels->softmax_row_backward(p_row + seen.begin, seen.end - seen.begin, head->factor,
                                                     dp_row + seen.begin);
        clear_unseen(dp_row, tile.cols, seen);
    }
}

/** Add m' (cols, rows) * x[tile's rows] (rows, D) to out[tile's columns] (cols, D); out and x are (T,D). */
static void add_to_columns(const head_t *head, tile_t tile, tw_matrix_t m, tw_matrix_t x, float *out)
{
    tw_product_run(head->products, &(tw_product_t){.a = tw_transposed(m),
                                                   .b = rows_from(x, tile.first),
                                                   .c = out + tile.from * head->qkv_stride,
                                                   .c_stride = head->qkv_stride,
                                                   .rows = tile.cols,
                                                   .cols = head->width,
                                                   .inner = tile.rows,
                                                   .alpha = 1.0f,
                                                   .beta = 1.0f});
}

/** Run the backward pass of a tile. p and dp are scratch, (rows, cols) each. */
static void tile_backward(const head_t *head, tile_t tile, float *p, float *dp)
{
    probabilities(head, tile, p);
    tw_product_run(head->products, /* dp = dy V' */
                   &(tw_product_t){.a = rows_from(head->dy, tile.first),
                                   .b = tw_transposed(rows_from(head->v, tile.from)),
                                   .c = dp,
                                   .c_stride = tile.cols,
                                   .rows = tile.rows,
                                   .cols = tile.cols,
                                   .inner = head->width,
                                   .alpha = 1.0f});
    softmax_backward(head, tile, p, dp);
    add_to_columns(head, tile, tile_factor(head, tile, p), head->dy, head->dv);
    tw_matrix_t ds = tile_factor(head, tile, dp);
    multiply_columns(head, tile, ds, head->k, head->dq, head->qkv_stride);
    add_to_columns(head, tile, ds, head->q, head->dk);
}

static void clear_columns(float *out, size_t rows, size_t cols, size_t stride)
{
    for (size_t row = 0; row < rows; row++) {
        memset(out + row * stride, 0, cols * sizeof(*out));
    }
}

/** Run the backward pass of the query heads of a sequence that share a k/v head. The heads add
 *  to the gradients of k and v one after the other. */
static void backward_item(void *ctx, size_t item, int thread)
{
    const call_t *call = ctx;
    const tw_attention_shape_t *shape = call->shape;
    size_t seq_len = shape->seq_len, group = shape->heads / shape->kv_heads;
    size_t b = item / shape->kv_heads, first_head = item % shape->kv_heads * group;
    float *p = scratch_of(call, thread), *dp = p + TILE_ROWS * seq_len;
    for (size_t h = first_head; h < first_head + group; h++) {
        places_t places = places_of(shape, b, h);
        head_t head = head_of(call->compute, shape, call->qkv, b, places);
        head.products = call->compute->products[thread];
        head.dy = tw_factor_from(call->dy, b * seq_len * head.y_stride + h * head.width);
        head.dq = call->dqkv + places.q;
        head.dk = call->dqkv + places.k;
        head.dv = call->dqkv + places.v;
        if (h == first_head) {
            clear_columns(head.dk, seq_len, head.width, head.qkv_stride);
            clear_columns(head.dv, seq_len, head.width, head.qkv_stride);
        }
        for (size_t first = 0; first < seq_len; first += TILE_ROWS) {
            tile_backward(&head, tile_at(&head, first), p, dp);
        }
    }
}

void tw_attention_backward(const tw_compute_t *compute, const tw_attention_shape_t *shape, const float *qkv,
                           const float *dy, float *scratch, float *dqkv)
{
    size_t n = shape->batch * shape->seq_len, y_width = shape->heads * shape->width;
    call_t call = {.compute = compute,
                   .shape = shape,
                   .qkv = qkv_factor(compute, shape, qkv),
                   .dy = tw_factor(compute, dy, n * y_width, y_width, compute->narrow_d),
                   .scratch = scratch,
                   .dqkv = dqkv};
    tw_pool_run(compute->pool, shape->batch * shape->kv_heads, backward_item, &call);
}
