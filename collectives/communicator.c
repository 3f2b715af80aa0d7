/** Communicators. */
#include "collectives/communicator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/model/measure.h"
#include "collectives/model/text.h"

#define MAX_ID 255

/** As tw_coll_gpu_workspace_t. */
static const char *const gpu_workspaces[] = {"auto", "pinned", "device", NULL};

static const tw_config_field_t fields[] = {
    {"TW_COLL_CHUNK", "0", "bytes",
     "Largest message of a collective operation, in bytes. 0: chosen. At least 256, at most what "
     "TW_COLL_SCRATCH "
     "has room for.",
     TW_CONFIG_BYTES, offsetof(tw_coll_options_t, chunk_bytes), 0, 1 << 30, NULL},
    {"TW_COLL_WINDOW", "8", "messages", "Messages in flight per operation, peer and direction.",
     TW_CONFIG_INT, offsetof(tw_coll_options_t, window), 1, 1024, NULL},
    {"TW_COLL_CHECK", "y", "",
     "Compare the arguments of every operation between neighbouring ranks: one short message.",
     TW_CONFIG_BOOL, offsetof(tw_coll_options_t, check), 0, 0, NULL},
    {"TW_COLL_TIMEOUT", "600s", "s",
     "Give an operation up when nothing has moved for so long while it was waited for. 0: never.",
     TW_CONFIG_TIME, offsetof(tw_coll_options_t, timeout_sec), 0, 1e9, NULL},
    {"TW_COLL_SCRATCH", "32M", "bytes",
     "Most scratch memory of a communicator, whatever the tensors' size; messages get smaller where ranks "
     "are many, "
     "down to eight blocks of the codec. "
     "Only an all-to-all in place needs more: as much as it sends. The same on all ranks.",
     TW_CONFIG_BYTES, offsetof(tw_coll_options_t, scratch_bytes), 64 << 10, 1e12, NULL},
    {"TW_COLL_MODEL", "measure", "",
     "What links and processors can do: \"measure\", or as in \"inter:alpha=50us,beta=1gbit;node:beta=40gbit;"
     "codec:encode=3G,decode=3G\" (what is left out has a default).",
     TW_CONFIG_STRING, offsetof(tw_coll_options_t, model), 0, 0, NULL},
    {"TW_COLL_EXPLAIN", "n", "",
     "Print, on rank 0, what the model expects of each algorithm for each new kind of operation, and the "
     "choice.",
     TW_CONFIG_BOOL, offsetof(tw_coll_options_t, explain), 0, 0, NULL},
    {"TW_COLL_GPU_WORKSPACE", "auto", "",
     "Between GPUs over a transport, messages go from and to host memory that kernels reach (\"pinned\"), or "
     "straight from and to GPU memory (\"device\"). \"auto\": device where the transport takes it, which UCX "
     "does if built with CUDA, inside a node or when TW_NET_TLS is not tcp.",
     TW_CONFIG_ENUM, offsetof(tw_coll_options_t, gpu_workspace), 0, 0, gpu_workspaces},
};

const tw_config_table_t tw_coll_config_table = {
    .module = "collectives",
    .fields = fields,
    .n_fields = sizeof(fields) / sizeof(fields[0]),
    .options_bytes = sizeof(tw_coll_options_t),
};

static tw_status_t create_topo(tw_coll_t *coll, const tw_coll_params_t *params)
{
    int world = tw_transport_world(coll->transport);

    if (params->ranks != NULL) {
        return tw_topo_init(&coll->topo, coll->transport, params->ranks, params->n_ranks);
    }
    int *all = malloc((size_t)world * sizeof(*all));
    if (all == NULL) {
        return TW_ERR_NO_MEMORY;
    }
    for (int r = 0; r < world; r++) {
        all[r] = r;
    }
    tw_status_t status = tw_topo_init(&coll->topo, coll->transport, all, world);
    free(all);
    return status;
}

/** The last tags of operation 0. */
static uint64_t model_tag(const tw_coll_t *coll)
{
    return ((uint64_t)coll->id << TW_COLL_ID_SHIFT) + (1u << TW_SCHED_SLOT_BITS) - TW_BOOTSTRAP_TAGS;
}

static tw_status_t create_model(tw_coll_t *coll)
{
    tw_bootstrap_t boot = {
        .transport = coll->transport,
        .topo = &coll->topo,
        .tag = model_tag(coll),
        .timeout_sec = coll->options.timeout_sec,
    };
    char text[TW_COLL_MODEL_TEXT_BYTES];
    tw_status_t status;

    if (strcmp(coll->options.model, "measure") == 0) {
        status = tw_coll_model_measure(&boot, &coll->model);
    } else {
        status = tw_coll_model_parse(coll->options.model, &coll->model);
    }
    if (status == TW_OK && coll->options.explain && coll->topo.rank == 0) {
        fprintf(stderr, "thinwire: TW_COLL_MODEL=\"%s\"\n",
                tw_coll_model_format(&coll->model, text, sizeof(text)));
    }
    return status;
}

tw_status_t tw_coll_create(const tw_coll_params_t *params, tw_coll_t **out)
{
    if (params->id < 0 || params->id > MAX_ID) {
        tw_error("communicator id %d is not in 0 to %d", params->id, MAX_ID);
        return TW_ERR_INVALID;
    }
    tw_coll_t *coll = calloc(1, sizeof(*coll));
    if (coll == NULL) {
        return TW_ERR_NO_MEMORY;
    }
    coll->transport = params->transport;
    coll->id = params->id;
    coll->algo_info = tw_coll_algo_get;
    TAILQ_INIT(&coll->active);
    TAILQ_INIT(&coll->ended);
    tw_status_t status = tw_config_init(&tw_coll_config_table, &coll->options);
    if (status != TW_OK) {
        goto err_coll;
    }
    status = create_topo(coll, params);
    if (status != TW_OK) {
        goto err_options;
    }
    status = tw_scratch_create(coll->options.scratch_bytes, &coll->scratch);
    if (status != TW_OK) {
        goto err_topo;
    }
    status = create_model(coll);
    if (status != TW_OK) {
        goto err_scratch;
    }
    coll->last_plan = (tw_coll_plan_t){.algo = "", .reason = ""};
    coll->mover = (tw_transport_mover_t){.move = tw_coll_move, .arg = coll};
    tw_transport_mover_add(coll->transport, &coll->mover);
    *out = coll;
    return TW_OK;

err_scratch:
    tw_scratch_destroy(coll->scratch);
err_topo:
    tw_topo_cleanup(&coll->topo);
err_options:
    tw_config_cleanup(&tw_coll_config_table, &coll->options);
err_coll:
    free(coll);
    return status;
}

static void destroy_requests(tw_coll_request_list_t *list)
{
    while (!TAILQ_EMPTY(list)) {
        tw_coll_request_t *request = TAILQ_FIRST(list);
        TAILQ_REMOVE(list, request, link);
        tw_request_destroy(request);
    }
}

void tw_coll_drop_requests(tw_coll_t *coll)
{
    destroy_requests(&coll->active);
    destroy_requests(&coll->ended);
}

void tw_coll_destroy(tw_coll_t *coll)
{
    if (coll == NULL) {
        return;
    }
    tw_transport_mover_remove(coll->transport, &coll->mover);
    tw_coll_drop_requests(coll);
    tw_codecs_cleanup(&coll->codecs);
    tw_scratch_destroy(coll->scratch);
    tw_topo_cleanup(&coll->topo);
    tw_config_cleanup(&tw_coll_config_table, &coll->options);
    free(coll);
}

int tw_coll_rank(const tw_coll_t *coll)
{
    return coll->topo.rank;
}

int tw_coll_size(const tw_coll_t *coll)
{
    return coll->topo.world;
}

int tw_coll_n_nodes(const tw_coll_t *coll)
{
    return coll->topo.n_nodes;
}

void tw_coll_last_plan(const tw_coll_t *coll, tw_coll_plan_t *plan)
{
    *plan = coll->last_plan;
}

uint64_t tw_coll_nonfinite_blocks(const tw_coll_t *coll)
{
    return tw_codecs_nonfinite_blocks(&coll->codecs);
}
