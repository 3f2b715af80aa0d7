/** The engine for host memory: an operation's schedule of messages and computations over the transport. */
#include <string.h>
#include <xxhash.h>

#include "collectives/communicator.h"
#include "collectives/schedule/run.h"

/** A hash of all arguments that tw_coll_choose looks at. */
static uint64_t key_of(const tw_coll_request_t *request)
{
    const tw_coll_args_t *args = &request->args;
    int32_t rest[3] = {(int32_t)args->op, (int32_t)args->type, args->force_codec};
    uint64_t key = XXH3_64bits_withSeed(rest, sizeof(rest), request->shape);

    return args->algo ? XXH3_64bits_withSeed(args->algo, strlen(args->algo), key) : key;
}

/** The same question again gets the same answer at once: planning is a good part of a small operation. */
static tw_status_t choose_again(tw_coll_request_t *request)
{
    tw_coll_t *coll = request->coll;
    size_t n = coll->n_known < TW_COLL_KNOWN ? coll->n_known : TW_COLL_KNOWN;
    uint64_t key = key_of(request);

    for (size_t i = 0; i < n; i++) {
        if (coll->known[i].key == key) {
            request->choice = coll->known[i].choice;
            return TW_OK;
        }
    }
    TW_TRY(tw_coll_choose(coll, &request->args, request->n_elems, &request->choice));
    coll->known[coll->n_known++ % TW_COLL_KNOWN] = (tw_coll_known_t){.key = key, .choice = request->choice};
    return TW_OK;
}

static tw_status_t build(tw_coll_request_t *request)
{
    tw_coll_t *coll = request->coll;
    TW_TRY(tw_request_create_sched(request));
    TW_TRY(tw_check_build(request));
    size_t elem_bytes = tw_type_bytes(request->args.type);
    float scale = tw_coll_scale(&request->args, coll->topo.world);
    size_t chunk_elems = request->choice.chunk_bytes / elem_bytes;
    tw_coll_args_t args = request->args;
    if (!tw_algo_get(request->choice.algo)->info.quantized) { /* asked for, perhaps, but declined */
        args.codec = args.inner_codec = NULL;
    }
    tw_build_t build = {
        .sched = request->sched,
        .topo = &coll->topo,
        .args = &args,
        .in = &request->in,
        .out = &request->out,
        .in_first = request->in_first,
        .out_first = request->out_first,
        .chunk_elems = chunk_elems > 0 ? chunk_elems : 1,
        .scale = scale,
        .factor = scale != 1.0f ? request->args.factor : tw_coll_factor(&request->args, coll->topo.world),
        .limit = tw_coll_limit(&request->args),
        .in_place = request->in_place,
        .aliased = request->aliased,
        .codecs = &request->coll->codecs,
        .rounds_sums = tw_coll_rounds_sums(coll, &request->args),
        .least_packed_bytes = request->choice.least_packed_bytes,
    };
    const tw_algo_t *algo = tw_algo_get(request->choice.algo);
    if (algo->build) {
        algo->build(&build);
    } else {
        tw_build_program(&build, &algo->flows, &coll->programs[request->choice.algo]);
    }
    return tw_sched_seal(request->sched);
}

static tw_status_t request_create(tw_coll_t *coll, const tw_coll_args_t *args, tw_coll_request_t **out)
{
    tw_coll_request_t *request;
    TW_TRY(tw_request_create(coll, args, &request));
    request->shape = tw_check_shape(request);
    tw_status_t status = choose_again(request);
    if (status == TW_OK) {
        status = build(request);
    }
    if (status != TW_OK) {
        tw_request_destroy(request);
        return status;
    }
    *out = request;
    return TW_OK;
}

static tw_status_t planned_bytes(tw_coll_t *coll, const tw_coll_args_t *args, uint64_t *bytes)
{
    const tw_topo_t *topo = &coll->topo;
    tw_coll_request_t *request;
    TW_TRY(request_create(coll, args, &request));
    *bytes = 0;
    for (int r = 0; r < topo->world; r++) {
        *bytes += topo->node[r] != topo->node[topo->rank] ? tw_sched_sent_bytes(request->sched, r) : 0;
    }
    tw_request_destroy(request);
    return TW_OK;
}

static const tw_coll_algo_info_t *algo_get(size_t index)
{
    const tw_algo_t *algo = tw_algo_get(index);

    return algo ? &algo->info : NULL;
}

static size_t workspace_bytes(const tw_coll_t *coll)
{
    return tw_scratch_held_bytes(coll->scratch);
}

const tw_coll_engine_t tw_coll_host_engine = {
    .algo_get = algo_get,
    .request_create = request_create,
    .planned_bytes = planned_bytes,
    .workspace_bytes = workspace_bytes,
};
