/* Posts operations, waits for them, and counts their bytes. */
#include "trainer/engine/calls.h"

tw_status_t tw_engine_ops_init(tw_engine_t *engine, tw_engine_ops_t *ops, size_t max_requests)
{
    ops->requests =
        tw_engine_alloc(engine, TW_ENGINE_MOVING, max_requests, sizeof(*ops->requests), "requests");
    ops->max_requests = ops->requests ? max_requests : 0;
    return ops->requests ? TW_OK : TW_ERR_NO_MEMORY;
}

/** Return the end of the segments, from `first` on, that one operation takes. */
static size_t bucket_end(const tw_coll_args_t *args, size_t first, int64_t bucket)
{
    size_t end = first, held = TW_ENGINE_NO_BUCKET;
    while (end < args->n_segments &&
           (!tw_engine_begins_bucket(&held, args->segments[end].n_elems, bucket) || end == first)) {
        end++;
    }
    return end;
}

void tw_engine_encode(const tw_engine_t *engine, const tw_quant_codec_t *codec, tw_coll_args_t *args)
{
    args->codec = tw_train_codec(codec);
    args->force_codec =
        args->codec && (tw_quant_form(codec) != TW_QUANT_MESSAGE || tw_coll_n_nodes(engine->coll) > 1);
}

tw_status_t tw_engine_note(tw_engine_t *engine, tw_engine_ops_t *ops, tw_coll_request_t *request)
{
    ops->requests[ops->n_requests++] = request;
    /* without overlap, or if the list is full, wait for all requests */
    int must_wait = !engine->options->overlap || ops->n_requests == ops->max_requests;
    return must_wait ? tw_engine_wait(engine, ops) : TW_OK;
}

tw_status_t tw_engine_post(tw_engine_t *engine, tw_engine_ops_t *ops, const tw_coll_args_t *args,
                           int64_t bucket, uint64_t *planned)
{
    int ask = *planned == TW_ENGINE_NOT_PLANNED;
    uint64_t all = ask ? 0 : *planned, one = 0;
    tw_status_t status = TW_OK;
    for (size_t first = 0, end; first < args->n_segments && status == TW_OK; first = end) {
        end = bucket_end(args, first, bucket);
        tw_coll_args_t some = *args;
        some.segments += first;
        some.n_segments = end - first;
        tw_coll_request_t *request = NULL;
        status = ask ? tw_coll_planned_inter_node_bytes(engine->coll, &some, &one) : TW_OK;
        all += one;
        status = status == TW_OK ? tw_coll_post(engine->coll, &some, &request) : status;
        status = status == TW_OK ? tw_engine_note(engine, ops, request) : status;
    }
    if (status == TW_OK) {
        *planned = all;
        engine->planned_bytes += all;
    }
    return status;
}

tw_status_t tw_engine_wait(tw_engine_t *engine, tw_engine_ops_t *ops)
{
    tw_status_t status = TW_OK;
    if (ops->n_requests == 0) {
        return TW_OK;
    }
    double begin = tw_time_sec();
    for (size_t i = 0; i < ops->n_requests; i++) {
        tw_status_t one = tw_coll_wait(ops->requests[i]);
        status = status == TW_OK ? one : status;
    }
    ops->n_requests = 0;
    engine->wait_sec += tw_time_sec() - begin;
    return status;
}

tw_status_t tw_engine_run(tw_engine_t *engine, const tw_coll_args_t *args)
{
    tw_coll_request_t *requests[1];
    tw_engine_ops_t ops = {.requests = requests, .max_requests = 1};
    uint64_t planned = TW_ENGINE_NOT_PLANNED;
    tw_status_t status = tw_engine_post(engine, &ops, args, INT64_MAX, &planned);
    return status == TW_OK ? tw_engine_wait(engine, &ops) : status;
}
