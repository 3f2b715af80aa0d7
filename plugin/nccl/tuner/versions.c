/* The tables for NCCL, v2 to v7, over tuner.h. get_coll_info never fails: that would fail the operation. */
#include "plugin/nccl/interposer.h"
#include "plugin/nccl/log.h"
#include "plugin/nccl/tuner/tuner.h"

#include <stdlib.h>

#define NAME "Thinwire"

static tw_nccl_result_t tuner_create(size_t world, size_t n_nodes, tw_nccl_logger_t logger, void **context)
{
    tw_tuner_t *tuner;
    tw_nccl_begin(logger);
    TW_FAIL_IF(world == 0 || n_nodes == 0 || n_nodes > world || !context, TW_NCCL_INVALID_ARGUMENT,
               "tuner: %zu ranks on %zu nodes: not a communicator", world, n_nodes);
    tuner = calloc(1, sizeof(*tuner));
    TW_FAIL_IF(!tuner, TW_NCCL_SYSTEM_ERROR, "tuner: out of memory");
    tuner->world = world;
    tuner->n_nodes = n_nodes;
    tw_status_t status = tw_tuner_configure(&tuner->constants, &tuner->explain);
    if (status != TW_OK) {
        free(tuner);
        return tw_nccl_result(status);
    }
    *context = tuner;
    return TW_NCCL_SUCCESS;
}

static tw_nccl_result_t tuner_create_v5(void **context, uint64_t comm_id, size_t world, size_t n_nodes,
                                        tw_nccl_logger_t logger, void *nvl_domains, void *constants)
{
    (void)comm_id, (void)nvl_domains, (void)constants;
    return tuner_create(world, n_nodes, logger, context);
}

static tw_nccl_result_t tuner_destroy(void *context)
{
    free(context);
    return TW_NCCL_SUCCESS;
}

static tw_nccl_result_t ask_v3(void *context, int func, size_t bytes, int n_ops, float **table, int n_algos,
                               int n_protos, int *n_channels)
{
    tw_tuner_op_t op = {.func = func, .bytes = bytes, .n_ops = n_ops};
    (void)n_channels;
    if (context && table) {
        tw_tuner_fill(context, &op, (float *)(void *)table, n_algos, n_protos);
    }
    return TW_NCCL_SUCCESS;
}

static tw_nccl_result_t ask_v4(void *context, int func, size_t bytes, int n_ops, float **table, int n_algos,
                               int n_protos, int is_registered, int *n_channels)
{
    (void)is_registered;
    return ask_v3(context, func, bytes, n_ops, table, n_algos, n_protos, n_channels);
}

/** Returns 1 if the user restricts NCCL's choice. In v2 NCCL does not tell the tuner which algorithms are
 *  allowed. Rings and trees with LL and SIMPLE are always allowed if the user restricts nothing. */
static int users_choice(void)
{
    return getenv("NCCL_ALGO") || getenv("NCCL_PROTO");
}

static void always_allowed(int func, float table[TW_NCCL_ALGOS * TW_NCCL_PROTOS])
{
    for (int i = 0; i < TW_NCCL_ALGOS * TW_NCCL_PROTOS; i++) {
        int algo = i / TW_NCCL_PROTOS;
        int is_known = algo == TW_NCCL_RING || (algo == TW_NCCL_TREE && func == TW_NCCL_ALL_REDUCE);

        table[i] = is_known && i % TW_NCCL_PROTOS != TW_NCCL_LL128 ? 0 : TW_NCCL_FORBIDDEN;
    }
}

static tw_nccl_result_t ask_v2(void *context, int func, size_t bytes, int has_collnet, int has_nvls,
                               int n_ops, int *algo, int *proto, int *n_channels)
{
    float table[TW_NCCL_ALGOS * TW_NCCL_PROTOS];
    tw_tuner_op_t op = {.func = func, .bytes = bytes, .n_ops = n_ops};
    tw_tuner_t *tuner = context;
    (void)has_collnet, (void)has_nvls, (void)n_channels;
    if (!tuner || tuner->n_nodes < 2 || func < 0 || func >= TW_NCCL_FUNCS || users_choice() ||
        tuner->constants.inter.gbps <= 0) {
        return TW_NCCL_SUCCESS;
    }
    always_allowed(func, table);
    tw_tuner_fill(tuner, &op, table, TW_NCCL_ALGOS, TW_NCCL_PROTOS);
    (void)tw_tuner_lowest(table, TW_NCCL_ALGOS, TW_NCCL_PROTOS, algo, proto);
    return TW_NCCL_SUCCESS;
}

extern const tw_nccl_tuner_v2_t ncclTunerPlugin_v2;
extern const tw_nccl_tuner_v3_t ncclTunerPlugin_v3;
extern const tw_nccl_tuner_v4_t ncclTunerPlugin_v4;
extern const tw_nccl_tuner_v5_t ncclTunerPlugin_v5;
extern const tw_nccl_tuner_v6_t ncclTunerPlugin_v6;
extern const tw_nccl_tuner_v7_t ncclTunerPlugin_v7;

#define UP_TO_V4(ask)                                                                        \
    {                                                                                        \
        .name = NAME, .init = tuner_create, .get_coll_info = (ask), .destroy = tuner_destroy \
    }

const tw_nccl_tuner_v2_t ncclTunerPlugin_v2 = UP_TO_V4(ask_v2);
const tw_nccl_tuner_v3_t ncclTunerPlugin_v3 = UP_TO_V4(ask_v3);
const tw_nccl_tuner_v4_t ncclTunerPlugin_v4 = UP_TO_V4(ask_v4);

/* From v6 on get_chunk_bytes is NULL: NCCL's own chunks are right for rings and trees over any network. */
#define FROM_V5 .name = NAME, .init = tuner_create_v5, .get_coll_info = ask_v4, .finalize = tuner_destroy

const tw_nccl_tuner_v5_t ncclTunerPlugin_v5 = {FROM_V5};
const tw_nccl_tuner_v6_t ncclTunerPlugin_v6 = {FROM_V5};
const tw_nccl_tuner_v7_t ncclTunerPlugin_v7 = {FROM_V5};
