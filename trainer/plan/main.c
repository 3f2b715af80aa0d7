/* The planner's program. */
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cluster/cluster.h"
#include "flags/flags.h"
#include "trainer/data/data.h"
#include "trainer/plan/layout.h"
#include "trainer/plan/plan.h"
#include "trainer/plan/report.h"
#include "trainer/shape.h"
#include "trainer/trainer.h"

enum { MAX_SETS = 256, MAX_ROWS = 32, BYTE_WORDS = 256 };

typedef struct plan {
    const char *config, *calibrate, *json;
    const char *sets[MAX_SETS + 8];
    size_t n_sets;
    char *params_key;
    size_t device_bytes;
    double n_params;
    tw_plan_cluster_t cluster;
    double compute_sec; /* of a step; 0: from device_flops */
    tw_plan_row_t rows[MAX_ROWS];
    size_t n_rows;
} plan_t;

/* ---- flags --------------------------------------------------------------------------------------------- */

/* No link: no bottleneck. */
static void take_rate(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *text)
{
    double *bps = (double *)((char *)ctx + flag->field.offset);
    tw_flag_take_link(state, flag, ctx, text);
    *bps = *bps > 0.0 ? *bps : INFINITY;
}

static void take_set(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *set)
{
    plan_t *plan = ctx;
    if (plan->n_sets == MAX_SETS) {
        argp_error(state, "--%s: more than %d", flag->field.name, MAX_SETS);
        return;
    }
    plan->sets[plan->n_sets++] = set;
}

#define AT(member) offsetof(plan_t, member)

/* The defaults of rates and operations are a core of a processor in fp32, and its memory. */
static const tw_flag_t flag_list[] = {
    {.field = {"config", NULL, "FILE", "DeepSpeed configuration of the run", TW_CONFIG_STRING, AT(config), 0,
               0, NULL},
     .letter = 'c',
     .group = 1},
    {.field = {"set", NULL, "KEY=VALUE", "Any key of it; repeatable", TW_CONFIG_STRING, 0, 0, 0, NULL},
     .letter = 's',
     .group = 1,
     .take = take_set},
    {.field = {"params", NULL, "N", "A model of about so many parameters: 124M, 7.5e9", TW_CONFIG_COUNT,
               AT(n_params), 1, 1e15, NULL},
     .group = 1},
    {.field = {"nodes", "2", "N", "Nodes", TW_CONFIG_INT32, AT(cluster.n_nodes), 1, 10000, NULL},
     .letter = 'n',
     .group = 2},
    {.field = {"ranks-per-node", "2", "L", "Ranks on each", TW_CONFIG_INT32, AT(cluster.ranks_per_node), 1,
               1000, NULL},
     .letter = 'r',
     .group = 2},
    {.field = {"link", "100mbit", "RATE", "Of each node, each way: 1gbit; none: no bottleneck",
               TW_CONFIG_RATE, AT(cluster.link_bps), 0, 0, NULL},
     .letter = 'l',
     .group = 2,
     .take = take_rate},
    {.field = {"in-node", "40gbit", "RATE", "Between the ranks of a node", TW_CONFIG_RATE,
               AT(cluster.in_node_bps), 0, 0, NULL},
     .group = 2,
     .take = take_rate},
    {.field = {"device-mem", NULL, "SIZE", "Memory of a rank: 16G (default: not looked at)", TW_CONFIG_BYTES,
               AT(device_bytes), 1, INFINITY, NULL},
     .group = 2},
    {.field = {"device-flops", "50e9", "N", "Operations a second that training reaches: 100e12",
               TW_CONFIG_DOUBLE, AT(cluster.device_flops), 1, 1e18, NULL},
     .group = 2},
    {.field = {"delta-bits", "3", "N", "Bits a parameter of the exact delta", TW_CONFIG_DOUBLE,
               AT(cluster.delta_bits), 0, 16, NULL},
     .group = 2},
    {.field = {"cores", NULL, "N",
               "Of a node, shared by its ranks (default: one for each; with --calibrate: the run was in a "
               "box on this "
               "machine, whose nodes share its cores)",
               TW_CONFIG_DOUBLE, AT(cluster.cores), 0.01, 10000, NULL},
     .group = 2},
    {.field =
         {"calibrate", NULL, "FILE",
          "--metrics of a plain stage 3 run of this model on this cluster, the trainer's or //bench:zero's: "
          "what computing and moving cost, the link and what a process takes are from it",
          TW_CONFIG_STRING, AT(calibrate), 0, 0, NULL},
     .group = 2},
    {.field = {"json", NULL, "FILE", "Write a JSON line for each set as well", TW_CONFIG_STRING, AT(json), 0,
               0, NULL},
     .group = 2},
};

/* --params as a key of the configuration, after all of --set. */
static void check(struct argp_state *state, void *ctx)
{
    plan_t *plan = ctx;
    plan->cluster.device_bytes = (double)plan->device_bytes;
    if (plan->n_params == 0.0) {
        return;
    }
    if (asprintf(&plan->params_key, "model.n_params=%.0f", fmin(plan->n_params, 1e12)) < 0) {
        plan->params_key = NULL;
        argp_failure(state, 1, ENOMEM, "--params");
    }
    plan->sets[plan->n_sets++] = plan->params_key;
}

/* ---- planning ------------------------------------------------------------------------------------------ */

/* The configuration with a set's keys on top. */
static tw_status_t configure(const plan_t *plan, const tw_trainer_set_t *set, tw_train_config_t **config)
{
    const char *sets[MAX_SETS + 16];
    size_t n = plan->n_sets;
    memcpy(sets, plan->sets, n * sizeof(*sets));
    for (size_t i = 0; set->keys[i]; i++) {
        sets[n++] = set->keys[i];
    }
    TW_TRY(tw_train_config_create(plan->config, sets, n, config));
    int n_ranks = plan->cluster.n_nodes * plan->cluster.ranks_per_node;
    tw_status_t status = tw_train_config_resolve(*config, n_ranks, plan->cluster.n_nodes);
    if (status != TW_OK) {
        tw_train_config_destroy(*config);
    }
    return status;
}

/* Of the data that the configuration names; without any it is text in bytes. */
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

static tw_status_t make_model(const tw_train_options_t *o, tw_model_t **model)
{
    tw_model_config_t shape;
    size_t vocab_size;
    tw_status_t status = find_vocab_size(o, &vocab_size);
    if (status == TW_OK) {
        status = tw_trainer_shape(o, vocab_size, &shape);
    }
    if (status == TW_OK) {
        status = tw_model_create(&shape, model);
    }
    return status == TW_OK ? tw_trainer_check_sizes(o, *model) : status;
}

static tw_status_t plan_row(plan_t *plan, const tw_trainer_set_t *set, const tw_model_t *model)
{
    tw_train_config_t *config;
    tw_plan_traffic_t traffic;
    tw_plan_row_t *row = &plan->rows[plan->n_rows];
    TW_TRY(configure(plan, set, &config));
    const tw_train_options_t *o = tw_train_config_options(config);
    *row = (tw_plan_row_t){.name = set->name, .stage = (int)o->stage};
    tw_status_t status = tw_plan_memory_of(o, model, &plan->cluster, &row->memory);
    if (status == TW_OK) {
        status = tw_plan_traffic_of(o, model, &plan->cluster, &traffic);
    }
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

/* Codecs, and copies, of what a rank sends of a layer. */
static tw_status_t find_speeds(plan_t *plan, const tw_model_t *model)
{
    tw_plan_cluster_t *cluster = &plan->cluster;
    tw_hpz_layout_t *layout;
    TW_TRY(tw_plan_layout(model, cluster, &layout));
    size_t first, n_tensors = tw_hpz_layout_tensors(layout, 1, &first), part = 0;
    size_t *pieces = calloc(n_tensors, sizeof(*pieces));
    tw_status_t status = pieces ? TW_OK : TW_ERR_NO_MEMORY;
    for (size_t t = 0; t < n_tensors && pieces; t++) {
        pieces[t] = tw_hpz_primary_piece(layout, first + t, 0, 0).n_elems;
        part += pieces[t];
    }
    if (status == TW_OK) {
        status = tw_plan_measure_codecs(pieces, n_tensors, cluster->codecs);
    }
    if (status == TW_OK && plan->calibrate) {
        status = tw_plan_measure_copies(part, &cluster->in_byte_sec);
    }
    free(pieces);
    tw_hpz_layout_destroy(layout);
    return status;
}

/* As measured, of several hundred steps on two cores with eight threads. */
#define BOX_DELAY_SEC 0.6e-3

/* The nodes of a cluster in a box share this machine's cores, and their idle links let bursts pass. */
static void assume_box(tw_plan_cluster_t *cluster)
{
    cluster->cores = (double)sysconf(_SC_NPROCESSORS_ONLN) / cluster->n_nodes;
    cluster->delay_sec = BOX_DELAY_SEC;
    cluster->link_burst_bytes =
        isinf(cluster->link_bps) ? 0.0 : (double)tw_cluster_burst_bytes(cluster->link_bps);
}

/* How long a rank computes, from a measured run or from what the device does. */
static tw_status_t find_compute(plan_t *plan, const tw_train_options_t *o, const tw_model_t *model)
{
    if (plan->calibrate && plan->cluster.cores == 0.0) {
        assume_box(&plan->cluster);
    }
    if (plan->calibrate) {
        return tw_plan_calibrate(plan->calibrate, o, model, &plan->cluster, &plan->compute_sec);
    }
    double flops = tw_model_step_flops(model, (size_t)o->micro_batch, (size_t)o->sequence);
    plan->compute_sec = (double)o->accumulation * flops / plan->cluster.device_flops;
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
    printf("# the exact delta at %.3g bits a parameter\n", cluster->delta_bits);
    double n_params = plan->n_params > 0.0 ? plan->n_params : (double)tw_model_n_params(model);
    tw_plan_print_states(n_params, cluster->n_nodes * cluster->ranks_per_node, stdout);
}

static tw_status_t plan_all(plan_t *plan)
{
    tw_train_config_t *config;
    tw_model_t *model = NULL;
    TW_TRY(configure(plan, tw_trainer_set_find("zero3"), &config));
    const tw_train_options_t *o = tw_train_config_options(config);
    tw_status_t status = make_model(o, &model);
    if (status == TW_OK) {
        status = find_speeds(plan, model);
    }
    if (status == TW_OK) {
        status = find_compute(plan, o, model);
    }
    if (status == TW_OK) {
        print_head(plan, o, model);
    }
    const tw_trainer_set_t *set;
    for (size_t i = 0; status == TW_OK && (set = tw_trainer_set_get(i)); i++) {
        status = plan_row(plan, set, model);
    }
    tw_model_destroy(model);
    tw_train_config_destroy(config);
    return status;
}

static tw_status_t write_json(const plan_t *plan)
{
    FILE *file = plan->json ? fopen(plan->json, "we") : NULL;
    if (!plan->json) {
        return TW_OK;
    }
    tw_status_t status =
        file ? tw_plan_write_json(plan->rows, plan->n_rows, &plan->cluster, file) : TW_ERR_IO;
    if ((file && fclose(file) != 0) || status != TW_OK) {
        tw_error("%s: cannot write it: %s", plan->json, strerror(errno));
        status = TW_ERR_IO;
    }
    return status;
}

int main(int argc, char **argv)
{
    static const tw_flags_t flags = {
        .flags = flag_list,
        .n_flags = sizeof(flag_list) / sizeof(flag_list[0]),
        .doc = "Says what a run will need and take before it runs: memory of a rank, bytes between nodes and "
               "time of "
               "a step, for every feature set, and what to switch on.\v"
               "Times are of a simulated step; the codecs' are of this machine. Best after --calibrate.",
        .check = check};
    plan_t plan = {.cluster.besides_bytes = TW_PLAN_PROCESS_BYTES};
    static char name[] = "plan"; /* the file is called main, in a folder of that name */
    argv[0] = name;
    tw_flags_read(&flags, argc, argv, &plan);
    tw_status_t status = plan_all(&plan);
    if (status == TW_OK) {
        tw_plan_print_memory(plan.rows, plan.n_rows, &plan.cluster, stdout);
        tw_plan_print_steps(plan.rows, plan.n_rows, stdout);
        tw_plan_print_advice(plan.rows, plan.n_rows, &plan.cluster, stdout);
        status = write_json(&plan);
    }
    free(plan.params_key);
    return status == TW_OK ? 0 : 1;
}
