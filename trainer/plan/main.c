/* The planner's program. */
#include <errno.h>
#include <math.h>
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

/* Where nothing is said: a core of a processor in fp32, and its memory. */
#define DEFAULT_FLOPS 50e9
#define DEFAULT_IN_NODE_BPS 40e9
#define DEFAULT_DELTA_BITS 3.0

typedef struct plan {
    const char *config, *calibrate, *json;
    const char *sets[MAX_SETS + 8];
    size_t n_sets;
    char *params_key;
    double n_params;
    tw_plan_cluster_t cluster;
    double compute_sec; /* of a step; 0: from device_flops */
    tw_plan_row_t rows[MAX_ROWS];
    size_t n_rows;
} plan_t;

/* ---- flags ----------------------------------------------------------------------------------------------- */

enum { KEY_IN_NODE = 256, KEY_MEM, KEY_FLOPS, KEY_PARAMS, KEY_BITS, KEY_CORES, KEY_CALIBRATE, KEY_JSON };

static const struct argp_option option_list[] = {
    {"config", 'c', "FILE", 0, "DeepSpeed configuration of the run", 1},
    {"set", 's', "KEY=VALUE", 0, "Any key of it; repeatable", 1},
    {"params", KEY_PARAMS, "N", 0, "A model of about so many parameters: 124M, 7.5e9", 1},
    {"nodes", 'n', "N", 0, "Nodes (default: 2)", 2},
    {"ranks-per-node", 'r', "L", 0, "Ranks on each (default: 2)", 2},
    {"link", 'l', "RATE", 0, "Of each node, each way: 1gbit; none: no bottleneck (default: 100mbit)", 2},
    {"in-node", KEY_IN_NODE, "RATE", 0, "Between the ranks of a node (default: 40gbit)", 2},
    {"device-mem", KEY_MEM, "SIZE", 0, "Memory of a rank: 16G (default: not looked at)", 2},
    {"device-flops", KEY_FLOPS, "N", 0, "Operations a second that training reaches: 100e12 (default: 50e9)",
     2},
    {"delta-bits", KEY_BITS, "N", 0, "Bits a parameter of the exact delta (default: 3)", 2},
    {"cores", KEY_CORES, "N", 0,
     "Of a node, shared by its ranks (default: one for each; with --calibrate: the run was in a box on this "
     "machine, whose nodes share its cores)",
     2},
    {"calibrate", KEY_CALIBRATE, "FILE", 0,
     "--metrics of a plain stage 3 run of this model on this cluster, the trainer's or //bench:zero's: "
     "what computing and moving cost, the link and what a process takes are from it",
     2},
    {"json", KEY_JSON, "FILE", 0, "Write a JSON line for each set as well", 2},
    {NULL, 0, NULL, 0, NULL, 0}};

/* No link: no bottleneck. */
static double rate_of(struct argp_state *state, const char *flag, const char *text)
{
    double bps = tw_flag_link(state, flag, text);
    return bps > 0.0 ? bps : INFINITY;
}

static void add_set(struct argp_state *state, plan_t *plan, const char *set)
{
    if (plan->n_sets == MAX_SETS) {
        argp_error(state, "--set: more than %d", MAX_SETS);
        return;
    }
    plan->sets[plan->n_sets++] = set;
}

static void add_params(struct argp_state *state, plan_t *plan, const char *text)
{
    plan->n_params = tw_flag_count(state, "params", text, 1e15);
    free(plan->params_key);
    if (asprintf(&plan->params_key, "model.n_params=%.0f", plan->n_params < 1e12 ? plan->n_params : 1e12) <
        0) {
        plan->params_key = NULL;
        argp_failure(state, 1, ENOMEM, "--params");
    }
    add_set(state, plan, plan->params_key);
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    plan_t *plan = state->input;
    tw_plan_cluster_t *cluster = &plan->cluster;
    switch (key) {
    case 'c':
        plan->config = arg;
        return 0;
    case 's':
        add_set(state, plan, arg);
        return 0;
    case KEY_PARAMS:
        add_params(state, plan, arg);
        return 0;
    case 'n':
        cluster->n_nodes = (int)tw_flag_int(state, "nodes", arg, 1, 10000);
        return 0;
    case 'r':
        cluster->ranks_per_node = (int)tw_flag_int(state, "ranks-per-node", arg, 1, 1000);
        return 0;
    case 'l':
        cluster->link_bps = rate_of(state, "link", arg);
        return 0;
    case KEY_IN_NODE:
        cluster->in_node_bps = rate_of(state, "in-node", arg);
        return 0;
    case KEY_MEM:
        cluster->device_bytes = (double)tw_flag_bytes(state, "device-mem", arg, 1, SIZE_MAX);
        return 0;
    case KEY_FLOPS:
        cluster->device_flops = tw_flag_number(state, "device-flops", arg, 1, 1e18);
        return 0;
    case KEY_BITS:
        cluster->delta_bits = tw_flag_number(state, "delta-bits", arg, 0, 16);
        return 0;
    case KEY_CORES:
        cluster->cores = tw_flag_number(state, "cores", arg, 0.01, 10000);
        return 0;
    case KEY_JSON:
        plan->json = arg;
        return 0;
    case KEY_CALIBRATE:
        plan->calibrate = arg;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "what is '%s'?", arg);
        return EINVAL;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- planning -------------------------------------------------------------------------------------------- */

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
    const tw_data_config_t config = {
        .path = o->data, .vocab = o->vocab, .merges = o->merges, .cache_dir = o->cache};
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
    return status == TW_OK ? tw_model_create(&shape, model) : status;
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
    static const struct argp argp = {
        option_list,
        parse_option,
        NULL,
        "Says what a run will need and take before it runs: memory of a rank, bytes between nodes and time "
        "of a step, for "
        "every feature set, and what to switch on.\v"
        "Times are of a simulated step; the codecs' are of this machine. Best after --calibrate.",
        NULL,
        NULL,
        NULL};
    plan_t plan = {0};
    plan.cluster = (tw_plan_cluster_t){.n_nodes = 2,
                                       .ranks_per_node = 2,
                                       .link_bps = 100e6,
                                       .in_node_bps = DEFAULT_IN_NODE_BPS,
                                       .device_flops = DEFAULT_FLOPS,
                                       .delta_bits = DEFAULT_DELTA_BITS,
                                       .besides_bytes = TW_PLAN_PROCESS_BYTES};
    static char name[] = "plan"; /* the file is called main, in a folder of that name */
    argv[0] = name;
    tw_flags_parse(&argp, argc, argv, 0, &plan);
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
