/** Checks that the ranks agree about an operation. Each rank sends a signature of the operation that it has
 *  posted to the next rank in the ring. A rank that receives a different signature ends the job, because
 *  then neither the data nor the order of operations can be trusted. */
#include <string.h>
#include <xxhash.h>

#include "collectives/communicator.h"

/** Hash the numbers of the tensors, on which stochastic rounding depends. */
static uint64_t hash_tensors(const tw_coll_args_t *args, uint64_t hash)
{
    for (size_t s = 0; s < args->n_segments && args->codec; s++) {
        uint64_t tensor[2] = {args->segments[s].tensor, args->segments[s].first_elem};
        hash = XXH3_64bits_withSeed(tensor, sizeof(tensor), hash);
    }
    return hash;
}

/** Fill in a request's signature, which ranks compare to see that they do the same operation. Requests that
 *  could not be posted have equal signatures, whatever they were, so that a failure on all ranks is no
 *  mismatch. */
static void sign(tw_coll_request_t *request)
{
    const tw_coll_args_t *args = &request->args;
    uint32_t sequence = request->coll->sequence;
    uint64_t hash = hash_tensors(args, request->shape);
    uint64_t rest[] = {(uint64_t)args->reduction,          (uint64_t)args->root,       args->seed, args->step,
                       request->choice.least_packed_bytes, request->choice.chunk_bytes};
    size_t chunk_bytes = request->choice.chunk_bytes;
    float factor = args->factor;
    hash = XXH3_64bits_withSeed(rest, sizeof(rest), hash);
    hash = XXH3_64bits_withSeed(&factor, sizeof(factor), hash);
    request->signature = (tw_coll_signature_t){.sequence = sequence, .op = TW_COLL_OP_COUNT};
    if (request->is_failed) {
        return;
    }
    request->signature = (tw_coll_signature_t){
        .sequence = sequence,
        .op = (uint16_t)args->op,
        .type = (uint16_t)args->type,
        .algo = (uint32_t)request->choice.algo,
        .chunk_bytes = (uint32_t)(chunk_bytes < UINT32_MAX ? chunk_bytes : UINT32_MAX),
        .n_elems = args->op == TW_COLL_ALLTOALL ? 0 : request->n_elems,
        .hash = hash,
    };
}

static const char *algo_name(const tw_coll_request_t *request, const tw_coll_signature_t *signature)
{
    const tw_coll_algo_info_t *info = request->coll->engine->algo_get(signature->algo);
    return info ? info->name : "?";
}

static void log_mismatch(const tw_coll_request_t *request, int peer)
{
    const tw_coll_signature_t *own = &request->signature, *other = &request->neighbour_signature;
    int rank = request->coll->topo.rank;
    if (other->op == TW_COLL_OP_COUNT || own->op == TW_COLL_OP_COUNT) {
        int failed_here = own->op == TW_COLL_OP_COUNT;
        const tw_coll_signature_t *posted = failed_here ? other : own;
        tw_error("rank %d: rank %d could not post operation number %u, rank %d posted %s (%s) as number %u",
                 rank, failed_here ? rank : peer, failed_here ? own->sequence : other->sequence,
                 failed_here ? peer : rank, tw_coll_op_name((tw_coll_op_t)posted->op),
                 algo_name(request, posted), posted->sequence);
        return;
    }
    char why[128] = "";
    if (own->n_elems == other->n_elems && own->op == other->op) {
        (void)snprintf(why, sizeof(why), "; counts, reduction, factor, root, codecs or seed may differ");
    }
    if (own->chunk_bytes != other->chunk_bytes) {
        (void)snprintf(why, sizeof(why), "; chunks are of %u bytes here and %u there (TW_COLL_CHUNK)",
                       own->chunk_bytes, other->chunk_bytes);
    }
    tw_error("rank %d: rank %d disagrees about an operation: here it is number %u, %s (%s) of %llu %s, "
             "there number %u, %s (%s) of %llu %s%s",
             rank, peer, own->sequence, tw_coll_op_name((tw_coll_op_t)own->op), algo_name(request, own),
             (unsigned long long)own->n_elems, tw_type_name((tw_type_t)own->type), other->sequence,
             tw_coll_op_name((tw_coll_op_t)other->op), algo_name(request, other),
             (unsigned long long)other->n_elems, tw_type_name((tw_type_t)other->type), why);
}

/** Returns the neighbour in the ring that sends its signature to this rank. */
static int before(const tw_topo_t *topo)
{
    return tw_topo_ring_behind(topo, topo->rank, topo->world - 1);
}

static tw_status_t agreement_compare(tw_sched_t *sched, const void *arg)
{
    const tw_coll_request_t *request = arg;
    (void)sched;
    if (memcmp(&request->signature, &request->neighbour_signature, sizeof(request->signature)) == 0) {
        return TW_OK;
    }
    log_mismatch(request, before(&request->coll->topo));
    return TW_ERR_MISMATCH;
}

/* ---- all-to-all ---------------------------------------------------------------------------------------- */

/* Sizes of what one rank sends to another one. Sender and receiver both compute them. */
typedef struct pair_sizes {
    uint64_t n_elems;
    uint64_t hash; /* hash of the sizes of each segment's share */
} pair_sizes_t;

typedef struct pair_check {
    int rank, peer;
    pair_sizes_t own, other; /* what this rank expects; what the peer says */
} pair_check_t;

static pair_sizes_t agreement_sizes_of(const tw_coll_args_t *args, int peer, int receives)
{
    pair_sizes_t sizes = {0};
    for (size_t s = 0; s < args->n_segments; s++) {
        const tw_coll_segment_t *segment = &args->segments[s];
        uint64_t n = receives ? segment->recv_counts[peer] : segment->counts[peer];
        sizes.n_elems += n;
        sizes.hash = XXH3_64bits_withSeed(&n, sizeof(n), sizes.hash);
    }
    return sizes;
}

static tw_status_t compare_pair(tw_sched_t *sched, const void *arg)
{
    const pair_check_t *pair = arg;
    (void)sched;
    if (memcmp(&pair->own, &pair->other, sizeof(pair->own)) == 0) {
        return TW_OK;
    }
    return tw_fail(TW_ERR_MISMATCH,
                   "rank %d: alltoall: rank %d sends %llu elements, here %llu are expected%s", pair->rank,
                   pair->peer, (unsigned long long)pair->other.n_elems, (unsigned long long)pair->own.n_elems,
                   pair->own.n_elems == pair->other.n_elems ? ", in other segments" : "");
}

/** Let every rank tell every other rank how much it sends. Without this exchange, a wrong count would mean a
 *  message that never comes, or one that nobody receives. */
static tw_status_t build_pairs(tw_coll_request_t *request)
{
    tw_sched_t *sched = request->sched;
    int world = request->coll->topo.world, rank = request->coll->topo.rank;
    size_t bytes = sizeof(pair_sizes_t);
    pair_sizes_t *sent = tw_sched_alloc(sched, (size_t)world * bytes);
    pair_check_t *pairs = tw_sched_alloc(sched, (size_t)world * sizeof(*pairs));
    if (!sent || !pairs) {
        return TW_ERR_NO_MEMORY;
    }
    for (int peer = 0; peer < world; peer++) {
        sent[peer] = agreement_sizes_of(&request->args, peer, 0);
        pairs[peer] =
            (pair_check_t){.rank = rank, .peer = peer, .own = agreement_sizes_of(&request->args, peer, 1)};
    }
    for (int step = 1; step < world; step++) {
        int to = (rank + step) % world, from = (rank - step + world) % world;
        tw_sched_send(sched, to, tw_sched_memory(sched, &sent[to], bytes));
        tw_task_t recv = tw_sched_recv(sched, from, tw_sched_memory(sched, &pairs[from].other, bytes));
        tw_sched_after(sched, tw_sched_compute(sched, compare_pair, &pairs[from]), recv);
    }
    return TW_OK;
}

/* ---- the exchange -------------------------------------------------------------------------------------- */

int tw_check_is_on(const tw_coll_t *coll)
{
    return coll->options.check && coll->topo.world > 1;
}

uint64_t tw_check_inter_node_bytes(const tw_coll_request_t *request)
{
    const tw_topo_t *topo = &request->coll->topo;
    uint64_t bytes = 0;
    for (int r = 0; r < topo->world; r++) {
        bytes += topo->node[r] != topo->node[topo->rank] ? tw_sched_sent_bytes(request->sched, r) : 0;
    }
    return bytes;
}

uint64_t tw_request_tag(const tw_coll_request_t *request)
{
    const tw_coll_t *coll = request->coll;
    return (uint64_t)coll->id << TW_COLL_ID_SHIFT | (uint64_t)(coll->sequence & 0xffff)
                                                        << TW_SCHED_NUMBER_BITS;
}

/** Make an empty schedule for a request, with the tags of the communicator's next operation. */
static tw_status_t create_sched(tw_coll_request_t *request)
{
    const tw_coll_t *coll = request->coll;
    tw_sched_env_t env = {
        .transport = coll->transport,
        .scratch = coll->scratch,
        .peer = coll->topo.peer,
        .rank = coll->topo.rank,
        .world = coll->topo.world,
        .window = (int)coll->options.window,
        .tag = tw_request_tag(request),
        .sent = coll->sent,
    };
    return tw_sched_create(&env, &request->sched);
}

tw_status_t tw_check_begin_sched(tw_coll_request_t *request)
{
    const tw_topo_t *topo = &request->coll->topo;
    const size_t bytes = sizeof(tw_coll_signature_t);
    TW_TRY(create_sched(request));
    tw_sched_t *sched = request->sched;
    sign(request);
    if (!tw_check_is_on(request->coll)) {
        return TW_OK;
    }
    int next = tw_topo_ring_behind(topo, topo->rank, 1);
    tw_sched_send(sched, next, tw_sched_memory(sched, &request->signature, bytes));
    tw_task_t recv =
        tw_sched_recv(sched, before(topo), tw_sched_memory(sched, &request->neighbour_signature, bytes));
    tw_sched_after(sched, tw_sched_compute(sched, agreement_compare, request), recv);
    return request->args.op == TW_COLL_ALLTOALL && !request->is_failed ? build_pairs(request) : TW_OK;
}

tw_status_t tw_check_create_sched(tw_coll_request_t *request)
{
    TW_TRY(tw_check_begin_sched(request));
    return tw_sched_seal(request->sched);
}
