/** Creates and destroys communicators, and answers questions about them. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "collectives/gpu/gpu.h"
#include "collectives/model/measuring.h"
#include "collectives/model/model.h"

/* ---- creating ------------------------------------------------------------------------------------------ */

static tw_status_t create_topo(tw_coll_t *coll, const tw_coll_setup_t *setup)
{
    const tw_coll_params_t *params = setup->params;

    if (params->transport) {
        return tw_topo_init(&coll->topo, params->transport, params->ranks, params->n_ranks);
    }
    return tw_topo_init_nodes(&coll->topo, setup->rank, setup->world, setup->node_ids);
}

/** Hash the settings that must be equal on all members. If they differed, operations would hang or give
 *  different results without an error. */
static uint64_t hash_terms(const tw_coll_t *coll, const tw_coll_params_t *params)
{
    uint64_t terms[] = {(uint64_t)params->mem, (uint64_t)params->wire, (uint64_t)coll->deterministic,
                        (uint64_t)coll->options.check, coll->options.scratch_bytes};

    return XXH3_64bits_withSeed(terms, sizeof(terms),
                                XXH3_64bits(coll->options.model, strlen(coll->options.model)));
}

static tw_bootstrap_t bootstrap(const tw_coll_t *coll, uint64_t tag)
{
    return (tw_bootstrap_t){
        .transport = coll->transport,
        .topo = &coll->topo,
        .tag = tag,
        .timeout_sec = coll->options.timeout_sec,
    };
}

static tw_status_t create_agreed(tw_coll_t *coll, const tw_coll_params_t *params)
{
    tw_bootstrap_t boot = bootstrap(coll, TW_COLL_MEETING_TAG);

    return tw_identity_agree(&boot, &coll->shared->ids, hash_terms(coll, params), params->id, &coll->id);
}

/** Make the cost model. For a GPU nothing is measured. Measuring uses the last tags of operation 0. */
static tw_status_t create_model_of(tw_coll_t *coll, int on_gpu)
{
    uint64_t tag =
        ((uint64_t)coll->id << TW_COLL_ID_SHIFT) + (1u << TW_SCHED_NUMBER_BITS) - TW_BOOTSTRAP_TAGS;
    tw_bootstrap_t boot = bootstrap(coll, tag);
    char text[TW_COLL_MODEL_TEXT_BYTES];

    if (strcmp(coll->options.model, TW_COLL_MODEL_MEASURE) != 0) {
        TW_TRY(tw_coll_model_parse(coll->options.model, &coll->model));
    } else if (coll->deterministic || on_gpu) {
        tw_coll_model_default(&coll->model);
    } else {
        TW_TRY(tw_coll_model_measure(&boot, &coll->model));
    }
    if (coll->options.explain && coll->topo.rank == 0 && !on_gpu) {
        fprintf(stderr, "thinwire: TW_COLL_MODEL=\"%s\"\n",
                tw_coll_model_format(&coll->model, text, sizeof(text)));
    }
    return TW_OK;
}

static void free_all(tw_coll_t *coll)
{
    tw_shared_mover_remove(&coll->mover);
    if (coll->id > 0) {
        tw_identity_free(&coll->shared->ids, coll->id);
    }
    tw_coll_drop_requests(coll);
    if (coll->detach) {
        coll->detach(coll);
    }
    tw_codecs_cleanup(&coll->codecs);
    tw_scratch_destroy(coll->scratch);
    for (size_t i = 0; i < TW_COLL_ALGOS; i++) {
        free(coll->traffic[i][0]);
        free(coll->traffic[i][1]);
        tw_ops_cleanup(&coll->programs[i]);
    }
    free(coll->sent);
    tw_topo_cleanup(&coll->topo);
    tw_config_cleanup(&tw_coll_config_table, &coll->options);
    tw_shared_put(coll->shared);
    free(coll);
}

/** Set up the parts that communicators of every kind have. */
static tw_status_t create_common(tw_coll_t *coll, const tw_coll_setup_t *setup)
{
    TW_TRY(tw_coll_options_read(&coll->options));
    if (setup->params->timeout_sec > 0) {
        coll->options.timeout_sec = setup->params->timeout_sec;
    }
    TW_TRY(create_topo(coll, setup));
    coll->deterministic = setup->params->deterministic || coll->options.deterministic;
    coll->sent = calloc((size_t)coll->topo.world, sizeof(*coll->sent));
    if (!coll->sent) {
        return TW_ERR_NO_MEMORY;
    }
    TW_TRY(tw_scratch_create(coll->options.scratch_bytes, &coll->scratch));
    if (!coll->transport) {
        return TW_OK;
    }
    TW_TRY(tw_shared_get(coll->transport, &coll->shared));
    return create_agreed(coll, setup->params);
}

tw_status_t tw_coll_create_with(const tw_coll_setup_t *setup, tw_coll_t **out)
{
    tw_coll_t *coll = calloc(1, sizeof(*coll));
    tw_status_t status = TW_ERR_NO_MEMORY;

    if (coll) {
        coll->engine = &tw_coll_host_engine;
        coll->transport = setup->params->transport;
        coll->params = *setup->params;
        coll->params.ranks = NULL;
        coll->progress = setup->progress;
        coll->device_index = setup->device_index;
        coll->n_forks = tw_fork_count();
        TAILQ_INIT(&coll->active);
        TAILQ_INIT(&coll->ended);
        status = create_common(coll, setup);
    }
    if (status == TW_OK) {
        status = create_model_of(coll, setup->device != NULL);
    }
    if (status == TW_OK && setup->device) {
        status = tw_gpu_attach(coll, setup->device, setup->nccl);
    } else if (setup->nccl) {
        setup->nccl->destroy(setup->nccl);
    }
    if (status != TW_OK) {
        if (coll) {
            free_all(coll);
        }
        return status;
    }
    tw_coll_timeout_set(coll, setup->params->patient ? 0 : coll->options.timeout_sec);
    if (coll->shared) {
        coll->mover = (tw_shared_mover_t){.move = tw_coll_move, .failed = tw_coll_failed, .arg = coll};
        tw_shared_mover_add(coll->shared, &coll->mover);
    }
    *out = coll;
    return TW_OK;
}

static tw_status_t create_refuse(const char *what)
{
    return tw_fail(TW_ERR_INVALID, "a communicator: %s", what);
}

/** Check that only one thread makes progress on the transport; two would corrupt its state. */
static tw_status_t check_owner(const tw_coll_params_t *params)
{
    const tw_shared_t *shared = tw_shared_find(params->transport);
    const int has_thread = shared && shared->progress;

    if (has_thread && !params->progress_thread) {
        return create_refuse("its transport has a progress thread, so it needs one, too");
    }
    if (!has_thread && params->progress_thread && shared && tw_identity_any(&shared->ids)) {
        return create_refuse(
            "its transport has communicators without a progress thread, so it can have none either");
    }
    return TW_OK;
}

static tw_status_t create_check_params(const tw_coll_params_t *params)
{
    TW_FAIL_IF(params->id < 0 || params->id > TW_COLL_MAX_ID, TW_ERR_INVALID,
               "communicator id %d is not in 0 to %d", params->id, TW_COLL_MAX_ID);
    if (params->mem != TW_MEM_HOST && params->mem != TW_MEM_CUDA) {
        return create_refuse("there is no such memory");
    }
    if (params->wire != TW_COLL_WIRE_TRANSPORT && params->wire != TW_COLL_WIRE_NCCL) {
        return create_refuse("there is no such wire");
    }
    if (params->wire == TW_COLL_WIRE_NCCL && params->mem == TW_MEM_HOST) {
        return create_refuse("NCCL carries nothing from host memory");
    }
    return params->transport ? check_owner(params) : create_refuse("it needs a transport");
}

/* Arguments of create_here, which runs on the progress thread if there is one. */
typedef struct creation {
    tw_coll_setup_t setup;
    tw_coll_t **out;
} creation_t;

static tw_status_t create_here(void *arg)
{
    creation_t *creation = arg;
    tw_coll_setup_t *setup = &creation->setup;
    tw_status_t status = TW_OK;

    if (setup->progress && setup->device) {
        status = setup->device->use(setup->device, setup->device_index);
    }
    if (status == TW_OK && setup->params->wire == TW_COLL_WIRE_NCCL) {
        status = tw_nccl_join(setup);
    }
    status = status == TW_OK ? tw_coll_create_with(setup, creation->out) : status;
    free(setup->node_ids);
    return status;
}

/** Make a communicator, on its progress thread if it is to have one. comm: as in tw_coll_setup_t. */
static tw_status_t create_members(const tw_coll_params_t *params, const tw_coll_nccl_params_t *comm,
                                  tw_coll_t **out)
{
    creation_t creation = {.setup = {.params = params, .comm = comm}, .out = out};
    tw_coll_setup_t *setup = &creation.setup;
    tw_status_t status = TW_OK;

    tw_config_check_names();
    if (params->mem == TW_MEM_CUDA) {
        setup->device = tw_gpu_device_cuda();
        status =
            setup->device ? setup->device->current(setup->device, &setup->device_index) : TW_ERR_UNSUPPORTED;
    }
    if (status == TW_OK && params->progress_thread) {
        status = tw_progress_get(params->transport, &setup->progress);
    }
    status = status == TW_OK ? tw_progress_call(setup->progress, create_here, &creation) : status;
    if (status != TW_OK) {
        tw_progress_put(setup->progress);
    }
    return status;
}

tw_status_t tw_coll_create(const tw_coll_params_t *params, tw_coll_t **out)
{
    TW_TRY(create_check_params(params));
    return create_members(params, NULL, out);
}

tw_status_t tw_coll_nccl_create(const tw_coll_nccl_params_t *params, tw_coll_t **out)
{
    const tw_coll_params_t common = {
        .mem = TW_MEM_CUDA,
        .wire = TW_COLL_WIRE_NCCL,
        .deterministic = params->deterministic,
        .timeout_sec = params->timeout_sec,
    };
    if (!params->comm) {
        return create_refuse("it needs a communicator of NCCL");
    }
    return create_members(&common, params, out);
}

static tw_status_t destroy_here(void *arg)
{
    tw_coll_t *coll = arg;

    tw_coll_enter(coll);
    if (coll->engine->drains) {
        (void)tw_coll_drain(coll);
    }
    free_all(coll);
    return TW_OK;
}

void tw_coll_destroy(tw_coll_t *coll)
{
    if (!coll ||
        coll->n_forks != tw_fork_count()) { /* in a forked child, other threads' locks may be held for ever */
        return;
    }
    tw_transport_t *own = coll->owns_transport ? coll->transport : NULL;
    tw_progress_t *progress = coll->progress;
    (void)tw_progress_call(progress, destroy_here, coll);
    tw_progress_put(progress);
    tw_transport_destroy(own);
}

/* ---- queries ------------------------------------------------------------------------------------------- */

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

double tw_coll_link_byte_sec(const tw_coll_t *coll)
{
    return coll->model.inter.beta_sec;
}

int tw_coll_node_of(const tw_coll_t *coll, int rank)
{
    return rank >= 0 && rank < coll->topo.world ? coll->topo.node[rank] : -1;
}

int tw_coll_local_of(const tw_coll_t *coll, int rank)
{
    return rank >= 0 && rank < coll->topo.world ? coll->topo.local[rank] : -1;
}

/* A question to a communicator. The thread that changes the communicator answers it. */
typedef struct question {
    tw_coll_t *coll;
    tw_coll_counters_t *counters;
    uint64_t number;
} question_t;

static tw_status_t ask_counters(void *arg)
{
    const question_t *question = arg;
    const tw_coll_t *coll = question->coll;
    const tw_topo_t *topo = &coll->topo;
    tw_coll_counters_t *out = question->counters;

    for (int r = 0; r < topo->world; r++) {
        if (r == topo->rank) {
            continue;
        }
        if (topo->node[r] == topo->node[topo->rank]) {
            out->in_node_bytes += coll->sent[r].bytes;
            out->in_node_messages += coll->sent[r].messages;
        } else {
            out->inter_node_bytes += coll->sent[r].bytes;
            out->inter_node_messages += coll->sent[r].messages;
            out->inter_node_spared_bytes += coll->sent[r].spared_bytes;
        }
    }
    return TW_OK;
}

void tw_coll_counters_get(tw_coll_t *coll, tw_coll_counters_t *out)
{
    question_t question = {.coll = coll, .counters = out};

    *out = (tw_coll_counters_t){0};
    (void)tw_progress_call(coll->progress, ask_counters, &question);
}

static tw_status_t ask_nonfinite_blocks(void *arg)
{
    question_t *question = arg;
    tw_coll_t *coll = question->coll;

    tw_coll_enter(coll);
    question->number = tw_codecs_nonfinite_blocks(&coll->codecs);
    return TW_OK;
}

uint64_t tw_coll_nonfinite_blocks(tw_coll_t *coll)
{
    question_t question = {.coll = coll};

    (void)tw_progress_call(coll->progress, ask_nonfinite_blocks, &question);
    return question.number;
}

static tw_status_t ask_workspace_bytes(void *arg)
{
    question_t *question = arg;

    question->number = question->coll->engine->workspace_bytes(question->coll);
    return TW_OK;
}

size_t tw_coll_workspace_bytes(tw_coll_t *coll)
{
    question_t question = {.coll = coll};

    (void)tw_progress_call(coll->progress, ask_workspace_bytes, &question);
    return (size_t)question.number;
}

/** Free memory that is kept, and let the C library return freed memory to the system. */
static tw_status_t trim(void *arg)
{
    tw_coll_t *coll = arg;

    tw_coll_enter(coll);
    tw_scratch_trim(coll->scratch);
    if (coll->engine->trim && coll->status == TW_OK && TAILQ_EMPTY(&coll->active)) {
        coll->engine->trim(coll);
    }
    (void)malloc_trim(0);
    return TW_OK;
}

void tw_coll_trim(tw_coll_t *coll)
{
    (void)tw_progress_call(coll->progress, trim, coll);
}

tw_mem_t tw_coll_workspace_mem(const tw_coll_t *coll)
{
    return coll->workspace_mem;
}

const tw_coll_algo_info_t *tw_coll_algo_get(tw_mem_t mem, size_t index)
{
    return mem == TW_MEM_HOST ? tw_coll_host_engine.algo_get(index) : tw_gpu_algo_get(index);
}
