/* Operations whose results are known beforehand, element by element. */
#include "tests/faults/state.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_ELEMS 32

typedef struct operation {
    tw_coll_op_t op;
    tw_quant_kind_t codec;
    const char *algo;
    size_t shard_blocks;
} operation_t;

/* Ranks run these in turn. Some are small, some keep a link busy for a while. */
static const operation_t operations[TW_FAULTS_OPS] = {
    {.op = TW_COLL_ALLGATHER, .codec = TW_QUANT_INT8, .shard_blocks = 64},
    {.op = TW_COLL_ALLREDUCE, .shard_blocks = 2048},
    {.op = TW_COLL_REDUCE_SCATTER, .codec = TW_QUANT_INT8, .algo = "one_hop", .shard_blocks = 2048},
    {.op = TW_COLL_ALLTOALL, .shard_blocks = 512},
    {.op = TW_COLL_ALLGATHER, .codec = TW_QUANT_INT4, .shard_blocks = 4096},
    {.op = TW_COLL_BARRIER},
    {.op = TW_COLL_REDUCE_SCATTER, .shard_blocks = 16},
    {.op = TW_COLL_ALLGATHER, .shard_blocks = 2048},
};

/* An operation on one tensor of fp32. */
typedef struct tensors {
    const operation_t *operation;
    int rank, world;
    size_t shard_elems, n_elems;
    float *src, *dst; /* [n_elems], of which the operation uses what it needs */
} tensors_t;

/** Return an element: an integer that the codec keeps exactly, as each block has its largest integer and so a
 *  scale of 1. */
static float value(const operation_t *operation, int rank, size_t elem)
{
    int bits = tw_quant_row_get(operation->codec)->bits, most = bits > 0 ? (1 << (bits - 1)) - 1 : 127;
    if (elem % BLOCK_ELEMS == 0) {
        return rank % 2 ? (float)-most : (float)most;
    }
    return (float)((int)((elem * 7 + (size_t)rank * 13 + elem / 97) % (size_t)(2 * most + 1)) - most);
}

/** Return element i of this rank's input; output() returns what it must get. */
static float input(const tensors_t *t, size_t i)
{
    size_t own = (size_t)t->rank * t->shard_elems;
    return value(t->operation, t->rank, t->operation->op == TW_COLL_ALLGATHER ? own + i : i);
}

static float sum(const tensors_t *t, size_t elem)
{
    float all = 0;
    for (int r = 0; r < t->world; r++) {
        all += value(t->operation, r, elem);
    }
    return all;
}

static float output(const tensors_t *t, size_t i)
{
    size_t own = (size_t)t->rank * t->shard_elems;
    switch (t->operation->op) {
    case TW_COLL_ALLGATHER:
        return value(t->operation, (int)(i / t->shard_elems), i);
    case TW_COLL_REDUCE_SCATTER:
        return sum(t, own + i);
    case TW_COLL_ALLTOALL:
        return value(t->operation, (int)(i / t->shard_elems), own + i % t->shard_elems);
    default:
        return sum(t, i);
    }
}

static tw_status_t faults_run(tw_coll_t *coll, const tensors_t *t)
{
    const operation_t *operation = t->operation;
    tw_quant_codec_t codec = {.kind = operation->codec,
                              .block = BLOCK_ELEMS,
                              .scale = TW_QUANT_SCALE_BF16,
                              .round = TW_QUANT_ROUND_NEAREST};
    tw_coll_segment_t segment = {.src = t->src, .dst = t->dst, .n_elems = t->n_elems};
    int moves = operation->op != TW_COLL_BARRIER;
    tw_coll_args_t args = {.op = operation->op,
                           .type = moves ? TW_TYPE_FP32 : TW_TYPE_BYTE,
                           .segments = moves ? &segment : NULL,
                           .n_segments = (size_t)moves,
                           .reduction = TW_COLL_SUM,
                           .codec = operation->codec != TW_QUANT_PLAIN ? &codec : NULL,
                           .algo = operation->algo,
                           .force_codec = 1};
    return tw_coll_run(coll, &args);
}

static uint64_t count_wrong(const tensors_t *t)
{
    uint64_t n_wrong = 0;
    size_t n = t->operation->op == TW_COLL_REDUCE_SCATTER ? t->shard_elems : t->n_elems;
    for (size_t i = 0; i < n; i++) {
        n_wrong += t->dst[i] != output(t, i);
    }
    return n_wrong;
}

tw_status_t tw_fault_operate(tw_coll_t *coll, int index, uint64_t *n_wrong)
{
    const operation_t *operation = &operations[index % TW_FAULTS_OPS];
    tensors_t t = {.operation = operation,
                   .rank = tw_coll_rank(coll),
                   .world = tw_coll_size(coll),
                   .shard_elems = operation->shard_blocks * BLOCK_ELEMS};
    t.n_elems = t.shard_elems * (size_t)t.world;
    t.src = tw_buffer_alloc(t.n_elems * sizeof(float));
    t.dst = tw_buffer_alloc(t.n_elems * sizeof(float));
    tw_status_t status = t.src && t.dst ? TW_OK : TW_ERR_NO_MEMORY;
    if (status == TW_OK) {
        memset(t.dst, 0xff, t.n_elems * sizeof(float));
        for (size_t i = 0; i < t.n_elems; i++) {
            t.src[i] = input(&t, i % (operation->op == TW_COLL_ALLGATHER ? t.shard_elems : t.n_elems));
        }
        status = faults_run(coll, &t);
    } else {
        tw_error("rank %d: out of memory for %zu elements", t.rank, t.n_elems);
    }
    if (status == TW_OK) {
        *n_wrong += count_wrong(&t);
    }
    tw_buffer_free(t.src);
    tw_buffer_free(t.dst);
    return status;
}
