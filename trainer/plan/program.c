/* Does what the flags of the planner's program ask for. */
#include "trainer/plan/program.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cluster/cluster.h"
#include "trainer/data/data.h"
#include "trainer/device/device.h"
#include "trainer/plan/layout.h"
#include "trainer/shape.h"

enum { BYTE_WORDS = 256 };
/* Assumed speed of a processor's core, in fp32 operations a second. */
#define CORE_FLOPS 50e9

tw_status_t plan_configure(const plan_t *plan, const tw_trainer_set_t *set, tw_train_config_t **config)
{
    const char *sets[PLAN_MAX_SETS + 16];
    size_t n = plan->n_sets;
    memcpy(sets, plan->sets, n * sizeof(*sets));
    for (size_t i = 0; set->keys[i]; i++) {
        sets[n++] = set->keys[i];
    }
    TW_TRY(tw_train_config_create(plan->config, sets, n, config));
    int world = plan->cluster.n_nodes * plan->cluster.ranks_per_node;
    tw_status_t status = tw_train_config_resolve(*config, world, plan->cluster.n_nodes);
    if (status != TW_OK) {
        tw_train_config_destroy(*config);
    }
    return status;
}

/** Find the vocabulary size of the data in the configuration. Without data, a token is a byte. */
static tw_status_t find_vocab_size(const tw_train_options_t *o, size_t *vocab_size)
{
    const tw_data_config_t config = {.path = o->data,
                                     .vocab = o->vocab,
                                     .merges = o->merges,
                                     .tokenizer = o->tokenizer,
                                     .token_bytes = (size_t)o->token_bytes,
                                     .cache_dir = o->cache};
    tw_data_t *data;
    *vocab_size = BYTE_WORDS;
    if (!*o->data || o->vocab_size > 0) {
        return TW_OK;
    }
    tw_status_t status = tw_data_open(&config, &data);
    if (status == TW_OK) {
        *vocab_size = tw_data_vocab_size(data);
        tw_data_close(data);
    }
    return status;
}

static tw_status_t plan_create_model(const tw_train_options_t *o, const tw_model_config_t *shape,
                                     tw_model_t **model)
{
    return o->device == TW_TRAIN_DEVICE_CUDA ? tw_device_model_create_planned(shape, model)
                                             : tw_model_create(shape, model);
}

tw_status_t plan_model(const tw_train_options_t *o, tw_model_t **model)
{
    tw_model_config_t shape;
    size_t vocab_size;
    tw_status_t status = find_vocab_size(o, &vocab_size);
    status = status == TW_OK ? tw_trainer_shape(o, vocab_size, &shape) : status;
    status = status == TW_OK ? plan_create_model(o, &shape, model) : status;
    return status == TW_OK ? tw_trainer_check_sizes(o, *model) : status;
}

tw_status_t plan_row(plan_t *plan, const tw_trainer_set_t *set, const tw_model_t *model)
{
    tw_train_config_t *config;
    tw_plan_traffic_t traffic;
    tw_plan_row_t *row = &plan->rows[plan->n_rows];
    TW_TRY(plan_configure(plan, set, &config));
    const tw_train_options_t *o = tw_train_config_options(config);
    *row = (tw_plan_row_t){.name = set->name,
                           .torch = set->torch,
                           .stage = (int)o->stage,
                           .is_lossless = tw_train_loses_nothing(o)};
    tw_status_t status = tw_plan_memory_of(o, model, &plan->cluster, &row->memory);
    status = status == TW_OK ? tw_plan_traffic_of(o, model, &plan->cluster, &traffic) : status;
    if (status == TW_OK) {
        row->inter_node_bytes = traffic.step.inter_node;
        row->in_node_bytes = traffic.step.in_node;
        tw_plan_traffic_cleanup(&traffic);
        status = tw_plan_time_of(o, model, &plan->cluster, plan->compute_sec, &row->time);
    }
    plan->n_rows += status == TW_OK;
    tw_train_config_destroy(config);
    return status;
}

tw_status_t plan_speeds(plan_t *plan, const tw_model_t *model)
{
    tw_plan_cluster_t *cluster = &plan->cluster;
    tw_hpz_layout_t *layout;
    TW_TRY(tw_plan_layout(model, cluster, &layout));
    size_t first, n_tensors = tw_hpz_layout_tensors(layout, 1, &first), own = 0;
    size_t *pieces = calloc(n_tensors, sizeof(*pieces));
    tw_status_t status = pieces ? TW_OK : TW_ERR_NO_MEMORY;
    for (size_t t = 0; t < n_tensors && pieces; t++) {
        pieces[t] = tw_hpz_primary_piece(layout, first + t, 0, 0).n_elems;
        own += pieces[t];
    }
    status = status == TW_OK ? tw_plan_measure_codecs(pieces, n_tensors, cluster->codecs) : status;
    if (status == TW_OK && plan->calibrate) {
        status = tw_plan_measure_copies(own, &cluster->in_byte_sec);
    }
    free(pieces);
    tw_hpz_layout_destroy(layout);
    return status;
}

/* Extra delay of an operation, measured in some hundred steps on two cores with 8 threads. */
#define BOX_DELAY_SEC 0.6e-3

/** Assume a cluster in a box: nodes share this machine's cores, and an idle link lets a burst pass. */
static void assume_box(tw_plan_cluster_t *cluster)
{
    cluster->cores = (double)sysconf(_SC_NPROCESSORS_ONLN) / cluster->n_nodes;
    cluster->delay_sec = BOX_DELAY_SEC;
    cluster->link_burst_bytes =
        isinf(cluster->link_bps) ? 0.0 : (double)tw_cluster_burst_bytes(cluster->link_bps);
}

/** Find how long a rank computes, from a measured run or the device's FLOP/s. */
static tw_status_t find_compute(plan_t *plan, const tw_train_options_t *o, const tw_model_t *model)
{
    if (plan->calibrate && plan->cluster.cores == 0.0) {
        assume_box(&plan->cluster);
    }
    if (plan->calibrate) {
        return tw_plan_calibrate(plan->calibrate, o, model, &plan->cluster, &plan->compute_sec);
    }
    double flops = tw_model_step_flops(model, (size_t)o->micro_batch, (size_t)o->sequence);
    plan->compute_sec = (double)o->accumulation * flops /
                        (plan->cluster.device_flops > 0.0 ? plan->cluster.device_flops : CORE_FLOPS);
    return TW_OK;
}

static void print_head(const plan_t *plan, const tw_train_options_t *o, const tw_model_t *model)
{
    const tw_model_config_t *c = tw_model_config_get(model);
    const tw_plan_cluster_t *cluster = &plan->cluster;
    printf("# %zu parameters: %zu layers of width %zu, %zu words; %lld tokens a step\n",
           tw_model_n_params(model), c->n_layer, c->n_embd, c->vocab_size,
           (long long)(o->batch * o->sequence));
    printf("# %d nodes of %d ranks; link %.4g Mb/s%s, %.4g ms of computing a step\n", cluster->n_nodes,
           cluster->ranks_per_node, cluster->link_bps * 1e-6, plan->calibrate ? " without headers" : "",
           plan->compute_sec * 1e3);
    printf("# of a core: %.3g us a message, %.3g ns a byte between nodes, %.3g ns inside one\n",
           cluster->message_sec * 1e6, cluster->inter_byte_sec * 1e9, cluster->in_byte_sec * 1e9);
    if (cluster->cores > 0.0) {
        printf("# %.3g cores a node for its %d ranks\n", cluster->cores, cluster->ranks_per_node);
    }
    printf("# the lossless delta at %.3g bits a parameter\n", cluster->delta_bits);
    double n_params = plan->n_params > 0.0 ? plan->n_params : (double)tw_model_n_params(model);
    if (o->bf16) { /* states are those of mixed precision */
        tw_plan_print_states(n_params, cluster->n_nodes * cluster->ranks_per_node, stdout);
    }
}

/** Return 1 if a set can run. fp32 weights have no delta, and fp8 does not run on GPUs. */
static int is_possible(const tw_train_options_t *o, const tw_trainer_set_t *set)
{
    static const char delta[] = "thinwire.weights=delta";
    int has_delta = 0;
    for (size_t i = 0; set->keys[i]; i++) {
        has_delta |= strncmp(set->keys[i], delta, sizeof(delta) - 1) == 0;
    }
    return (o->bf16 || !has_delta) &&
           (o->device == TW_TRAIN_DEVICE_CPU || strcmp(set->name, TW_PLAN_FP8_SET) != 0);
}

tw_status_t plan_all(plan_t *plan)
{
    tw_train_config_t *config;
    tw_model_t *model = NULL;
    TW_TRY(plan_configure(plan, tw_trainer_set_find("zero3"), &config));
    const tw_train_options_t *o = tw_train_config_options(config);
    tw_status_t status = plan_model(o, &model);
    status = status == TW_OK ? plan_speeds(plan, model) : status;
    status = status == TW_OK ? find_compute(plan, o, model) : status;
    if (status == TW_OK) {
        print_head(plan, o, model);
    }
    const tw_trainer_set_t *set;
    for (size_t i = 0; status == TW_OK && (set = tw_trainer_set_get(i)); i++) {
        status = is_possible(o, set) ? plan_row(plan, set, model) : TW_OK;
    }
    tw_model_destroy(model);
    tw_train_config_destroy(config);
    return status;
}
