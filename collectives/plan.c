/** Which algorithm, and how large its messages are. */
#include <string.h>

#include "collectives/coll.h"

#define DEFAULT_CHUNK_BYTES ((size_t)512 << 10)

static int is_candidate(const tw_coll_t *coll, const tw_coll_args_t *args, const tw_algo_t *algo)
{
    return algo->info.op == args->op && algo->info.quantized == (args->codec != NULL) &&
           (algo->fits == NULL || algo->fits(&coll->topo));
}

static tw_status_t find_by_name(const tw_coll_t *coll, const tw_coll_args_t *args, size_t *index)
{
    const tw_algo_t *algo;

    for (size_t i = 0; (algo = tw_algo_get(i)) != NULL; i++) {
        if (strcmp(algo->info.name, args->algo) != 0 || algo->info.op != args->op ||
            algo->info.quantized != (args->codec != NULL))
            continue;
        if (algo->fits != NULL && !algo->fits(&coll->topo)) {
            tw_error("rank %d: %s: algorithm %s does not fit %d ranks on %d nodes", coll->topo.rank,
                     tw_coll_op_name(args->op), args->algo, coll->topo.world, coll->topo.n_nodes);
            return TW_ERR_UNSUPPORTED;
        }
        *index = i;
        return TW_OK;
    }
    tw_error("rank %d: %s: there is no %s algorithm \"%s\"", coll->topo.rank, tw_coll_op_name(args->op),
             args->codec != NULL ? "quantized" : "exact", args->algo);
    return TW_ERR_INVALID;
}

static double model_sec(const tw_coll_t *coll, const tw_case_t *c, size_t index)
{
    tw_coll_cost_t cost = {0};

    tw_algo_get(index)->cost(c, &cost);
    return tw_coll_model_time(&coll->model, &cost);
}

static tw_status_t find_cheapest(const tw_coll_t *coll, const tw_case_t *c, size_t *index)
{
    const tw_algo_t *algo;
    double best_sec = -1;

    for (size_t i = 0; (algo = tw_algo_get(i)) != NULL; i++) {
        if (!is_candidate(coll, c->args, algo))
            continue;
        double sec = model_sec(coll, c, i);
        if (best_sec >= 0 && sec >= best_sec)
            continue;
        best_sec = sec;
        *index = i;
    }
    if (best_sec >= 0)
        return TW_OK;
    tw_error("rank %d: %s: no algorithm fits", coll->topo.rank, tw_coll_op_name(c->args->op));
    return TW_ERR_UNSUPPORTED;
}

tw_status_t tw_coll_choose(tw_coll_t *coll, const tw_coll_args_t *args, size_t n_elems,
                           tw_coll_choice_t *choice)
{
    size_t chunk_bytes = coll->options.chunk_bytes;
    tw_status_t status;

    if (chunk_bytes == 0)
        chunk_bytes = DEFAULT_CHUNK_BYTES;
    tw_case_t c = {
        .model = &coll->model,
        .topo = &coll->topo,
        .args = args,
        .bytes = (double)n_elems * (double)tw_type_bytes(args->type),
        .chunk_bytes = (double)chunk_bytes,
    };
    *choice = (tw_coll_choice_t){.chunk_bytes = chunk_bytes, .reason = ""};
    if (args->algo == NULL || strcmp(args->algo, "auto") == 0)
        status = find_cheapest(coll, &c, &choice->algo);
    else
        status = find_by_name(coll, args, &choice->algo);
    if (status == TW_OK)
        choice->model_sec = model_sec(coll, &c, choice->algo);
    return status;
}
