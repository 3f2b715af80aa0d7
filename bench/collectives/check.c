/* Compares a shard with its reference, block by block, and computes the error bound of each block. */
#include "bench/collectives/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GROUP TW_QUANT_HADAMARD_ELEMS
#define FP32_ROUNDOFF 0x1p-24

/* Work space for one block of at most `block` elements. */
typedef struct block {
    const tw_bench_check_params_t *params;
    size_t n;
    double *ref;            /* [n] the exact result */
    double *abs;            /* [n] sum of the magnitudes of the inputs */
    double *node;           /* [n_nodes][n] sum of the inputs of each node's ranks */
    float *input;           /* [n] one rank's input, or the result, in fp32 */
    void *typed;            /* [n] one rank's input in its type */
    double *turned, *plain; /* [n] rotated values of amax(); one rank's input in fp64 */
    int n_nodes;
} block_t;

static int count_nodes(const tw_bench_check_params_t *params)
{
    int n = 1;
    for (int r = 0; r < params->world; r++) {
        n = params->node_of[r] >= n ? params->node_of[r] + 1 : n;
    }
    return n;
}

static size_t block_elems(const tw_bench_check_params_t *params)
{
    return params->codec ? (size_t)params->codec->block : TW_QUANT_BLOCK_MAX;
}

static void block_cleanup(block_t *block)
{
    free(block->ref);
    free(block->abs);
    free(block->node);
    free(block->input);
    free(block->typed);
    free(block->turned);
    free(block->plain);
}

static tw_status_t block_init(block_t *block, const tw_bench_check_params_t *params)
{
    size_t n = block_elems(params);
    *block = (block_t){.params = params, .n_nodes = count_nodes(params)};
    block->ref = malloc(n * sizeof(*block->ref));
    block->abs = malloc(n * sizeof(*block->abs));
    block->node = malloc(n * (size_t)block->n_nodes * sizeof(*block->node));
    block->input = malloc(n * sizeof(*block->input));
    block->typed = malloc(n * sizeof(float));
    block->turned = malloc(n * sizeof(*block->turned));
    block->plain = malloc(n * sizeof(*block->plain));
    if (!block->ref || !block->abs || !block->node || !block->input || !block->typed || !block->turned ||
        !block->plain) {
        tw_error("check: out of memory");
        block_cleanup(block);
        return TW_ERR_NO_MEMORY;
    }
    return TW_OK;
}

/* ---- bounds -------------------------------------------------------------------------------------------- */

static void turn_group(double *x)
{
    for (int stride = 1; stride < GROUP; stride *= 2) {
        for (int i = 0; i < GROUP; i++) {
            if (i & stride) {
                double a = x[i - stride], b = x[i];
                x[i - stride] = a + b;
                x[i] = a - b;
            }
        }
    }
    for (int i = 0; i < GROUP; i++) {
        x[i] /= sqrt(GROUP);
    }
}

/** Return the largest magnitude in a block, after the codec's rotation if it has one. */
static double amax(const block_t *block, const tw_quant_codec_t *codec, const double *x)
{
    double most = 0;
    memcpy(block->turned, x, block->n * sizeof(*x));
    for (size_t g = 0; codec->hadamard && g + GROUP <= block->n; g += GROUP) {
        turn_group(block->turned + g);
    }
    for (size_t i = 0; i < block->n; i++) {
        most = fmax(most, fabs(block->turned[i]));
    }
    return most;
}

/** Return the largest error that encoding adds to a block whose values have errors of up to `error`. */
static double hop_error(const block_t *block, const tw_quant_codec_t *codec, const double *x, double error)
{
    double grown = codec->hadamard ? error * sqrt(GROUP) : error;
    double most = (amax(block, codec, x) + grown) * (1 + 64 * FP32_ROUNDOFF);
    return tw_quant_error_bound(codec, most);
}

static double unit_roundoff(tw_type_t type)
{
    return type == TW_TYPE_BF16 ? 0x1p-8 : type == TW_TYPE_FP16 ? 0x1p-11 : FP32_ROUNDOFF;
}

/* ---- reference ----------------------------------------------------------------------------------------- */

/** Return 1 if the operation only moves values: then the reference is one rank's input. */
static int is_moved(const tw_bench_check_params_t *params)
{
    return params->op == TW_COLL_ALLGATHER || params->op == TW_COLL_ALLTOALL;
}

static void load_input(const block_t *block, size_t tensor, int rank, size_t first)
{
    const tw_bench_check_params_t *params = block->params;
    int version = params->op == TW_COLL_ALLGATHER ? 0 : rank;
    tw_bench_data_fill(params->data, tensor, version, first, block->n, block->typed);
    tw_convert_to_fp32(params->type, block->typed, block->input, block->n);
}

static int is_two_hop(const tw_bench_check_params_t *params)
{
    return params->codec && params->two_hop;
}

/** Set the reference of a block that was only moved. Return the bound of the codec's error. */
static double coll_gather(block_t *block, size_t tensor, size_t first)
{
    const tw_quant_codec_t *codec = block->params->codec;
    load_input(block, tensor, block->params->from, first);
    for (size_t i = 0; i < block->n; i++) {
        block->ref[i] = block->input[i];
        block->abs[i] = fabs(block->ref[i]);
    }
    return codec ? hop_error(block, codec, block->ref, 0) : 0;
}

/** Sum the inputs of all ranks (ref), and of each node's ranks (node). Return the bound of the errors of the
 *  first hop, and add each node's part of it to node_error. */
static double coll_sum_inputs(block_t *block, size_t tensor, size_t first, double *node_error)
{
    const tw_bench_check_params_t *params = block->params;
    const tw_quant_codec_t *codec = is_two_hop(params) ? params->inner : params->codec;
    double error = 0;
    memset(block->node, 0, (size_t)block->n_nodes * block->n * sizeof(*block->node));
    memset(block->abs, 0, block->n * sizeof(*block->abs));
    memset(block->ref, 0, block->n * sizeof(*block->ref));
    for (int r = 0; r < params->world; r++) {
        double *node = block->node + (size_t)params->node_of[r] * block->n, *x = block->plain;
        load_input(block, tensor, r, first);
        for (size_t i = 0; i < block->n; i++) {
            x[i] = block->input[i];
            node[i] += x[i];
            block->ref[i] += x[i];
            block->abs[i] += fabs(x[i]);
        }
        double one = codec ? hop_error(block, codec, x, 0) : 0;
        node_error[params->node_of[r]] += one;
        error += one;
    }
    return error;
}

/** Set the reference of a reduced block. Return the bound of the errors of all hops' codecs. */
static double coll_reduce(block_t *block, size_t tensor, size_t first, double *node_error)
{
    const tw_bench_check_params_t *params = block->params;
    memset(node_error, 0, (size_t)block->n_nodes * sizeof(*node_error));
    double error = coll_sum_inputs(block, tensor, first, node_error);
    for (int n = 0; is_two_hop(params) && n < block->n_nodes; n++) {
        error += hop_error(block, params->codec, block->node + (size_t)n * block->n, node_error[n]);
    }
    for (size_t i = 0; i < block->n; i++) {
        block->ref[i] /= params->world;
        block->abs[i] /= params->world;
    }
    error /= params->world;
    if (params->op == TW_COLL_ALLREDUCE && params->codec) {
        error += hop_error(block, params->codec, block->ref, error);
    }
    return error;
}

/* ---- comparison ---------------------------------------------------------------------------------------- */

/** Return the error that rounding may add to the codec's error. Sums are rounded to fp32, and the result to
 *  the tensor's type. Without a codec every partial sum is rounded to the tensor's type. */
static double rounding(const block_t *block, size_t i, double error)
{
    const tw_bench_check_params_t *params = block->params;
    double unit = unit_roundoff(params->type), magnitude = block->abs[i] + error;
    if (is_moved(params) && !params->codec) {
        return 0;
    }
    double sums = (params->world + 70) * FP32_ROUNDOFF * (magnitude + (params->codec ? error * 16 : 0));
    return sums + (params->codec ? 2 * unit : pow(1 + unit, params->world + 1) - 1) * magnitude;
}

/** Count the elements of [first, last) with an error above the bound. With by_norm, these are a rotated
 *  group: if the 2-norm of its errors is above the bound, all its elements count. */
static uint64_t count_outside(const block_t *block, const float *result, size_t first, size_t last,
                              double error, int by_norm)
{
    uint64_t outside = 0;
    double norm2 = 0, allowed2 = 0, reach = by_norm ? error * sqrt(GROUP) : error;
    for (size_t i = first; i < last; i++) {
        double diff = fabs(result[i] - block->ref[i]), round = rounding(block, i, error);
        outside += !(diff <= reach + round);
        norm2 += diff * diff;
        allowed2 += round * round;
    }
    if (by_norm && !(sqrt(norm2) <= sqrt(GROUP) * error + sqrt(allowed2))) {
        return last - first;
    }
    return outside;
}

static void coll_compare(const block_t *block, const float *result, double error, tw_bench_check_sums_t *sums)
{
    const tw_quant_codec_t *codec = block->params->codec;
    size_t at = 0;
    for (size_t i = 0; i < block->n; i++) {
        double diff = result[i] - block->ref[i];
        sums->err2 += diff * diff;
        sums->ref2 += block->ref[i] * block->ref[i];
        sums->max_abs_err = fmax(sums->max_abs_err, fabs(diff));
        sums->n_nonfinite += !isfinite(block->ref[i]);
    }
    for (; codec && codec->hadamard && at + GROUP <= block->n; at += GROUP) {
        sums->n_outside += count_outside(block, result, at, at + GROUP, error, 1);
    }
    sums->n_outside += count_outside(block, result, at, block->n, error, 0);
}

tw_status_t tw_bench_check_shard(const tw_bench_check_params_t *params, size_t tensor, int shard,
                                 const void *result, tw_bench_check_sums_t *sums)
{
    size_t n_elems = tw_bench_data_tensor(params->data, tensor)->n_elems, size = block_elems(params);
    size_t first = tw_coll_shard_offset(n_elems, params->world, shard);
    size_t n = tw_coll_shard_elems(n_elems, params->world, shard), elem_bytes = tw_type_bytes(params->type);
    block_t block;
    TW_TRY(block_init(&block, params));
    double *node_error = calloc((size_t)block.n_nodes, sizeof(*node_error));
    if (!node_error) {
        tw_error("check: out of memory");
        block_cleanup(&block);
        return TW_ERR_NO_MEMORY;
    }
    for (size_t at = 0; at < n; at += block.n) {
        block.n = n - at < size ? n - at : size;
        double error = is_moved(params) ? coll_gather(&block, tensor, first + at)
                                        : coll_reduce(&block, tensor, first + at, node_error);
        tw_convert_to_fp32(params->type, (const char *)result + at * elem_bytes, block.input, block.n);
        coll_compare(&block, block.input, error, sums);
    }
    free(node_error);
    block_cleanup(&block);
    return TW_OK;
}
