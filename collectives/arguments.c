/** Turns the caller's arguments into a request: checks them, copies them, and makes views of the tensors. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "collectives/communicator.h"

/* Ranks of an all-to-all may send different amounts, but must all make the same plan. So they plan as if
 * each shard had this many elements. */
#define ALLTOALL_ELEMS ((size_t)1 << 18)
#define HASHED 5 /* segments in one call of XXH3: above 240 bytes it takes a slower path */

const char *tw_coll_op_name(tw_coll_op_t op)
{
    static const char *const names[] = {"allgather", "reduce_scatter", "allreduce",
                                        "broadcast", "alltoall",       "barrier"};
    return (unsigned)op < TW_COLL_OP_COUNT ? names[op] : "?";
}

/* ---- checks -------------------------------------------------------------------------------------------- */

static int is_reduction(tw_coll_op_t op)
{
    return op == TW_COLL_REDUCE_SCATTER || op == TW_COLL_ALLREDUCE;
}

/** Add up the counts of the first `world` ranks. Returns SIZE_MAX if the sum does not fit. */
static size_t sum_counts(const size_t *counts, int world)
{
    size_t sum = 0;
    for (int r = 0; r < world; r++) {
        sum = tw_size_add(sum, counts[r]);
    }
    return sum;
}

static tw_status_t arguments_refuse(const tw_coll_t *coll, const tw_coll_args_t *args, const char *what)
{
    return tw_fail(TW_ERR_INVALID, "rank %d: %s: %s", coll->topo.rank, tw_coll_op_name(args->op), what);
}

static tw_status_t check_codec(const tw_coll_t *coll, const tw_coll_args_t *args,
                               const tw_quant_codec_t *codec)
{
    TW_TRY(tw_quant_codec_check(codec));
    const tw_quant_row_t *row = tw_quant_row_get(codec->kind);
    if (row->form == TW_QUANT_CHANGE || row->form == TW_QUANT_AS_IS) {
        return arguments_refuse(coll, args,
                                "a codec whose messages do not stand for themselves: NULL is plain");
    }
    TW_FAIL_IF(row->form == TW_QUANT_MESSAGE && coll->engine->fixes_lengths, TW_ERR_UNSUPPORTED,
               "rank %d: %s: %s messages have lengths of their own, and NCCL needs lengths beforehand: make "
               "the communicator for a transport (TW_WIRE_TRANSPORT)",
               coll->topo.rank, tw_coll_op_name(args->op), row->name);
    if (!row->sums && is_reduction(args->op)) {
        (void)arguments_refuse(coll, args, "its codec does not sum: it is for changes of weights");
        return TW_ERR_UNSUPPORTED;
    }
    return TW_OK;
}

/** Whether an all-to-all has a segment without counts that does not split evenly. Without counts, every rank
 *  sends the same number of elements to each rank, and receives as many from each. */
static int is_uneven(const tw_coll_args_t *args, size_t world)
{
    size_t n = args->op == TW_COLL_ALLTOALL && args->segments ? args->n_segments : 0;
    int uneven = 0;
    for (size_t s = 0; s < n; s++) {
        const tw_coll_segment_t *segment = &args->segments[s];
        uneven |= !segment->counts && !segment->recv_counts && segment->n_elems % world != 0;
    }
    return uneven;
}

/** Returns what is wrong with the arguments, apart from the segments, as text; NULL if they are right. */
static const char *find_fault(const tw_coll_args_t *args, int world)
{
    const size_t most_segments = TW_MEMORY_BYTES_MAX / sizeof(*args->segments) / (size_t)world;
    const int is_encodable =
        is_reduction(args->op) || args->op == TW_COLL_ALLGATHER || args->op == TW_COLL_ALLTOALL;
    const int is_rank = args->root >= 0 && args->root < world;
    const struct {
        int is_there;
        const char *what;
    } faults[] = {
        {tw_type_bytes(args->type) == 0, "unknown element type"},
        {is_reduction(args->op) && args->type == TW_TYPE_BYTE, "bytes cannot be reduced"},
        {args->reduction != TW_COLL_SUM && args->reduction != TW_COLL_MEAN, "unknown reduction"},
        {!isfinite(args->factor), "factor is not a finite number"},
        {args->op == TW_COLL_BROADCAST && !is_rank, "root is not a rank of the communicator"},
        {args->n_segments > 0 && !args->segments, "segments is NULL"},
        {args->n_segments > most_segments, "n_segments is more than fits in memory"},
        {args->n_segments > 0 && args->op == TW_COLL_BARRIER, "it takes no segments"},
        {!args->codec && args->inner_codec, "inner_codec needs a codec"},
        {args->codec && args->type == TW_TYPE_BYTE, "bytes cannot be encoded"},
        {args->codec && !is_encodable, "this operation has no quantized form"},
        {tw_quant_form(args->inner_codec) == TW_QUANT_MESSAGE,
         "inner_codec has messages that say their length: inside a node plain is as good, and quicker"},
        {args->n_segments <= most_segments && is_uneven(args, (size_t)world),
         "n_elems is no multiple of the ranks: counts and recv_counts are needed"},
    };

    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        if (faults[i].is_there) {
            return faults[i].what;
        }
    }
    return NULL;
}

static tw_status_t check_args(const tw_coll_t *coll, const tw_coll_args_t *args)
{
    TW_FAIL_IF((unsigned)args->op >= TW_COLL_OP_COUNT, TW_ERR_INVALID, "rank %d: unknown operation %d",
               coll->topo.rank, (int)args->op);
    const char *fault = find_fault(args, coll->topo.world);
    if (fault) {
        return arguments_refuse(coll, args, fault);
    }
    TW_TRY(args->codec ? check_codec(coll, args, args->codec) : TW_OK);
    return args->inner_codec ? check_codec(coll, args, args->inner_codec) : TW_OK;
}

/** Returns a text that says what is wrong with a segment, or NULL if it is right. The segment's counts are
 *  already filled in. Adds the segment's bytes to *n_bytes, which holds the sum of the segments before it. */
static const char *find_segment_fault(const tw_coll_request_t *request, const tw_coll_segment_t *segment,
                                      size_t *n_bytes)
{
    const tw_coll_args_t *args = &request->args;
    int rank = request->coll->topo.rank, world = request->coll->topo.world;
    int is_alltoall = args->op == TW_COLL_ALLTOALL;
    size_t n_in = segment->n_elems, n_out = is_alltoall ? sum_counts(segment->recv_counts, world) : n_in;
    if (tw_coll_op_has_shards(args->op) && sum_counts(segment->counts, world) != n_in) {
        return "counts do not sum up to n_elems";
    }
    *n_bytes = tw_size_add(*n_bytes, tw_size_mul(n_out > n_in ? n_out : n_in, tw_type_bytes(args->type)));
    if (*n_bytes > TW_MEMORY_BYTES_MAX) {
        return n_out > n_in ? "the sum of recv_counts is more than fits in memory"
                            : "n_elems is more than fits in memory";
    }
    if (is_alltoall && segment->counts[rank] != segment->recv_counts[rank]) {
        return "counts and recv_counts differ for the own rank";
    }
    if (args->op == TW_COLL_REDUCE_SCATTER) {
        return !segment->src && n_in > 0 ? "src is NULL" : NULL;
    }
    return !segment->dst && n_out > 0 ? "dst is NULL" : NULL;
}

static tw_status_t check_segments(const tw_coll_request_t *request)
{
    const tw_coll_args_t *args = &request->args;
    size_t n_bytes = 0;
    for (size_t s = 0; s < args->n_segments; s++) {
        const tw_coll_segment_t *segment = &args->segments[s];
        int has_codec = segment->codec && !segment->unquantized;
        const char *fault = find_segment_fault(request, segment, &n_bytes);
        fault = !fault && has_codec && !args->codec ? "its codec needs one of the operation" : fault;
        TW_FAIL_IF(fault, TW_ERR_INVALID, "rank %d: %s: segment %zu: %s", request->coll->topo.rank,
                   tw_coll_op_name(args->op), s, fault);
        TW_TRY(has_codec ? check_codec(request->coll, args, segment->codec) : TW_OK);
    }
    return TW_OK;
}

/* ---- copies -------------------------------------------------------------------------------------------- */

static void copy_counts(size_t *to, const size_t *from, size_t n_elems, int world)
{
    for (int r = 0; r < world; r++) {
        to[r] = from ? from[r] : tw_coll_shard_elems(n_elems, world, r);
    }
}

/** Copy the arguments, because the caller may free segments, counts and codecs before the operation ends. */
static tw_status_t copy_args(tw_coll_request_t *request, const tw_coll_args_t *args)
{
    int world = request->coll->topo.world;
    size_t n = args->n_segments, per_segment = tw_coll_op_has_shards(args->op) ? (size_t)world : 0;
    if (args->op == TW_COLL_ALLTOALL) {
        per_segment *= 2;
    }
    request->args = *args;
    request->args.factor = args->factor != 0 ? args->factor : 1;
    size_t bytes = sizeof(*request->segments) + sizeof(*request->tensors) +
                   per_segment * sizeof(*request->counts) + sizeof(*request->segment_codecs);
    request->segments = malloc(tw_size_add(tw_size_mul(n, bytes), 1));
    if (!request->segments) {
        return TW_ERR_NO_MEMORY;
    }
    request->tensors = (tw_grid_tensor_t *)(request->segments + n);
    request->counts = (size_t *)(request->tensors + n);
    request->segment_codecs = (tw_quant_codec_t *)(request->counts + n * per_segment);
    for (size_t s = 0; s < n; s++) {
        tw_coll_segment_t *segment = &request->segments[s];
        size_t *counts = &request->counts[s * per_segment];
        *segment = args->segments[s];
        if (segment->codec) {
            request->segment_codecs[s] = *segment->codec;
            segment->codec = &request->segment_codecs[s];
        }
        segment->counts = segment->recv_counts = NULL;
        if (per_segment == 0) {
            continue;
        }
        copy_counts(counts, args->segments[s].counts, segment->n_elems, world);
        segment->counts = counts;
        if (args->op != TW_COLL_ALLTOALL) {
            continue;
        }
        for (int r = 0; r < world; r++) {
            counts[world + r] = args->segments[s].recv_counts ? args->segments[s].recv_counts[r]
                                                              : counts[request->coll->topo.rank];
        }
        segment->recv_counts = counts + world;
    }
    request->args.segments = request->segments;
    if (args->codec) {
        request->codec = *args->codec;
        request->args.codec = &request->codec;
    }
    if (args->inner_codec) {
        request->inner_codec = *args->inner_codec;
        request->args.inner_codec = &request->inner_codec;
    }
    return TW_OK;
}

/* ---- shapes -------------------------------------------------------------------------------------------- */

/* A codec in the form that is hashed. All fields are 0 if there is no codec. */
typedef struct codec_fields {
    int32_t fields[8]; /* their number is even, so that no padding follows */
} codec_fields_t;

static codec_fields_t fields_of(const tw_quant_codec_t *codec)
{
    codec_fields_t fields = {{0}};
    if (codec) {
        fields = (codec_fields_t){{1, (int32_t)codec->kind, codec->block, (int32_t)codec->scale,
                                   (int32_t)codec->round, codec->hadamard, codec->step}};
    }
    return fields;
}

/* What is hashed of a segment: its size (0 in an all-to-all, where sizes differ between ranks) and codec. */
typedef struct segment_shape {
    uint64_t n_elems, is_plain;
    codec_fields_t codec;
} segment_shape_t;

/** Fill in `shape` where it stands. To return a struct and copy it would be slower: the copy's wide loads
 *  would wait for the narrow writes of its members. */
static void describe_segment(const tw_coll_args_t *args, const tw_coll_segment_t *segment,
                             segment_shape_t *shape)
{
    shape->n_elems = args->op != TW_COLL_ALLTOALL ? segment->n_elems : 0;
    shape->is_plain = args->codec && segment->unquantized;
    shape->codec = fields_of(args->codec ? segment->codec : NULL);
}

/** Hash the segments' sizes and all codecs. The hash is equal on all ranks. */
static uint64_t hash_shape(const tw_coll_request_t *request)
{
    const tw_coll_args_t *args = &request->args;
    codec_fields_t codecs[2] = {fields_of(args->codec), fields_of(args->inner_codec)};
    uint64_t hash = XXH3_64bits_withSeed(codecs, sizeof(codecs), args->n_segments);
    size_t n = args->n_segments, world = (size_t)request->coll->topo.world;
    segment_shape_t batch[HASHED];
    for (size_t s = 0; s < n; s++) {
        describe_segment(args, &args->segments[s], &batch[s % HASHED]);
        if (s % HASHED == HASHED - 1 || s + 1 == n) {
            hash = XXH3_64bits_withSeed(batch, (s % HASHED + 1) * sizeof(*batch), hash);
        }
    }
    int has_counts = tw_coll_op_has_shards(args->op) && args->op != TW_COLL_ALLTOALL;
    return has_counts ? XXH3_64bits_withSeed(request->counts, n * world * sizeof(*request->counts), hash)
                      : hash;
}

uint64_t tw_request_key(const tw_coll_request_t *request)
{
    const tw_coll_args_t *args = &request->args;
    int32_t rest[3] = {(int32_t)args->op, (int32_t)args->type, args->force_codec};
    uint64_t key = XXH3_64bits_withSeed(rest, sizeof(rest), request->shape);
    return args->algo ? XXH3_64bits_withSeed(args->algo, strlen(args->algo), key) : key;
}

/* ---- requests ------------------------------------------------------------------------------------------ */

void tw_grid_place(const tw_coll_segment_t *segment, tw_coll_op_t op, int rank, size_t elem_bytes,
                   tw_grid_tensor_t *at)
{
    at->src = segment->src;
    at->dst = segment->dst;
    at->src_first = at->dst_first = 0;
    at->tensor = segment->tensor;
    at->first_elem = segment->first_elem;
    at->row_elems = segment->row_elems;
    if (op == TW_COLL_ALLGATHER) {
        at->src_first = sum_counts(segment->counts, rank);
        at->src = at->src ? at->src : at->dst + at->src_first * elem_bytes;
    } else if (op == TW_COLL_REDUCE_SCATTER) {
        at->dst_first = sum_counts(segment->counts, rank);
        at->dst = at->dst ? at->dst : (char *)segment->src + at->dst_first * elem_bytes;
    } else {
        at->src = at->src ? at->src : at->dst;
    }
}

/** Note where each segment's source and target are, and count all elements. A broadcast's source is dst. */
static void place_segments(tw_coll_request_t *request)
{
    const tw_coll_args_t *args = &request->args;
    const tw_topo_t *topo = &request->coll->topo;
    size_t elem_bytes = tw_type_bytes(args->type);
    request->in_place = 1;
    for (size_t s = 0; s < args->n_segments; s++) {
        const tw_coll_segment_t *segment = &args->segments[s];
        tw_grid_tensor_t *at = &request->tensors[s];
        tw_grid_place(segment, args->op, topo->rank, elem_bytes, at);
        at->src = args->op == TW_COLL_BROADCAST ? at->dst : at->src;
        int in_place = segment->n_elems == 0 ||
                       at->src + at->dst_first * elem_bytes == at->dst + at->src_first * elem_bytes;
        request->n_elems += segment->n_elems;
        request->in_place &= in_place;
        request->aliased |= in_place && segment->n_elems > 0;
    }
    if (args->op == TW_COLL_ALLTOALL) {
        request->n_elems = (size_t)topo->world * ALLTOALL_ELEMS;
    }
}

tw_coll_request_t *tw_request_alloc(tw_coll_t *coll)
{
    tw_coll_request_t *request = calloc(1, sizeof(*request));
    if (request) {
        request->coll = coll;
        request->status = TW_IN_PROGRESS;
    }
    return request;
}

tw_status_t tw_request_create(tw_coll_t *coll, const tw_coll_args_t *args, tw_coll_request_t **out)
{
    TW_TRY(check_args(coll, args));
    tw_coll_request_t *request = tw_request_alloc(coll);
    if (!request) {
        return TW_ERR_NO_MEMORY;
    }
    tw_status_t status = copy_args(request, args);
    status = status == TW_OK ? check_segments(request) : status;
    if (status != TW_OK) {
        tw_request_destroy(request);
        return status;
    }
    place_segments(request);
    request->shape = hash_shape(request);
    *out = request;
    return TW_OK;
}

void tw_request_destroy(tw_coll_request_t *request)
{
    tw_sched_destroy(request->sched);
    tw_grid_cleanup(&request->grid);
    free(request->segments);
    free(request);
}
