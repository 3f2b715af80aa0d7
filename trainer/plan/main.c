/* The planner's program. */
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "flags/flags.h"
#include "trainer/plan/program.h"

/** Parse a link's rate. The value 0, for "none", becomes infinite: the link is no bottleneck. */
static void plan_take_rate(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *text)
{
    double *bps = (double *)((char *)ctx + flag->field.offset);
    tw_flag_take_link(state, flag, ctx, text);
    *bps = *bps > 0.0 ? *bps : INFINITY;
}

static void take_set(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *set)
{
    plan_t *plan = ctx;
    if (plan->n_sets == PLAN_MAX_SETS) {
        argp_error(state, "--%s: more than %d", flag->field.name, PLAN_MAX_SETS);
        return;
    }
    plan->sets[plan->n_sets++] = set;
}

#define AT(member) offsetof(plan_t, member)

/* By default, the rate inside a node is that of a processor's memory. */
static const tw_flag_t flag_list[] = {
    {.field = {"config", NULL, "FILE", "DeepSpeed configuration of the run", TW_CONFIG_STRING, AT(config), 0,
               0, NULL},
     .letter = 'c'},
    {.field = {"set", NULL, "KEY=VALUE", "Any key of it; repeatable", TW_CONFIG_STRING, 0, 0, 0, NULL},
     .letter = 's',
     .take = take_set},
    {.field =
         {"cluster", NULL, "FILE",
          "Cases: what any framework runs on any cluster (JSON, docs/planning.md): predict their steps, "
          "beside what was measured, and what they would be here; or what doctor --json has written. What it "
          "does not say --params or --model, --device-flops, --device-mem, --in-node and --set do",
          TW_CONFIG_STRING, AT(cluster_file), 0, 0, NULL}},
    {.field = {"case", NULL, "NAME", "Of that file; without one it is all of them, in short",
               TW_CONFIG_STRING, AT(case_name), 0, 0, NULL}},
    {.field = {"model", NULL, "DIR|config.json", "The model of --cluster, as transformers writes it",
               TW_CONFIG_STRING, AT(model), 0, 0, NULL}},
    {.field = {"params", NULL, "N", "A model of about so many parameters: 124M, 7.5e9", TW_CONFIG_COUNT,
               AT(n_params), 1, 1e15, NULL}},
    {.field = {"nodes", "2", "N", "Nodes", TW_CONFIG_INT32, AT(cluster.n_nodes), 1, 10000, NULL},
     .letter = 'n',
     .group = 2},
    {.field = {"ranks-per-node", "2", "L", "Ranks on each", TW_CONFIG_INT32, AT(cluster.ranks_per_node), 1,
               1000, NULL},
     .letter = 'r'},
    {.field = {"link", "100mbit", "RATE", "Of each node, each way: 1gbit; none: no bottleneck",
               TW_CONFIG_RATE, AT(cluster.link_bps), 0, 0, NULL},
     .letter = 'l',
     .take = plan_take_rate},
    {.field = {"in-node", "40gbit", "RATE", "Between the ranks of a node", TW_CONFIG_RATE,
               AT(cluster.in_node_bps), 0, 0, NULL},
     .take = plan_take_rate},
    {.field = {"device-mem", NULL, "SIZE", "Memory of a rank, or of a GPU: 16G (default: not looked at)",
               TW_CONFIG_BYTES, AT(device_bytes), 1, INFINITY, NULL}},
    {.field = {"device-flops", NULL, "N",
               "Operations a second that training reaches: 100e12 (default: 50e9; of --cluster: what the "
               "case says)",
               TW_CONFIG_DOUBLE, AT(cluster.device_flops), 1, 1e18, NULL}},
    {.field = {"delta-bits", "3", "N", "Bits a parameter of the lossless delta", TW_CONFIG_DOUBLE,
               AT(cluster.delta_bits), 0, 16, NULL}},
    {.field = {"cores", NULL, "N",
               "Of a node, shared by its ranks (default: one for each; with --calibrate: the run was in a "
               "box on this machine, whose nodes share its cores)",
               TW_CONFIG_DOUBLE, AT(cluster.cores), 0.01, 10000, NULL}},
    {.field =
         {"calibrate", NULL, "FILE",
          "--metrics of a plain stage 3 run of this model on this cluster, the trainer's or //bench:zero's: "
          "what computing and moving cost, the link and what a process takes are from it",
          TW_CONFIG_STRING, AT(calibrate), 0, 0, NULL}},
    {.field = {"json", NULL, "FILE", "Write a JSON line for each set as well", TW_CONFIG_STRING, AT(json), 0,
               0, NULL}},
};

/** Check the flags. Turn --params into a key of the configuration, which comes after all --set. */
static void plan_check(struct argp_state *state, void *ctx)
{
    plan_t *plan = ctx;
    plan->cluster.device_bytes = (double)plan->device_bytes;
    if (!plan->cluster_file && (plan->model || plan->case_name)) {
        argp_error(state, "--%s needs --cluster", plan->model ? "model" : "case");
    }
    if (plan->n_params == 0.0) {
        return;
    }
    if (asprintf(&plan->params_key, "model.n_params=%.0f", fmin(plan->n_params, 1e12)) < 0) {
        plan->params_key = NULL;
        argp_failure(state, 1, ENOMEM, "--params");
    }
    plan->sets[plan->n_sets++] = plan->params_key;
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
        status = tw_fail(TW_ERR_IO, "%s: cannot write it: %s", plan->json, strerror(errno));
    }
    return status;
}

int main(int argc, char **argv)
{
    static const tw_flags_t flags = {
        .flags = flag_list,
        .n_flags = sizeof(flag_list) / sizeof(flag_list[0]),
        .doc = "Says what a run will need and take before it runs: memory of a rank, bytes between nodes and "
               "time of a step, for every feature set, and what to switch on.\v"
               "Times are of a simulated step; the codecs' are of this machine. Best after --calibrate.",
        .check = plan_check};
    plan_t plan = {.cluster.besides_bytes = TW_PLAN_PROCESS_BYTES};
    static char name[] = "plan"; /* the file is called main, in a folder called plan */
    argv[0] = name;
    tw_flags_read(&flags, argc, argv, &plan);
    tw_status_t status = plan.cluster_file ? plan_cases(&plan) : plan_all(&plan);
    if (status == TW_OK && !plan.cluster_file) {
        tw_plan_print_memory(plan.rows, plan.n_rows, &plan.cluster, stdout);
        tw_plan_print_steps(plan.rows, plan.n_rows, stdout);
        tw_plan_print_advice(plan.rows, plan.n_rows, &plan.cluster, stdout);
        status = write_json(&plan);
    }
    free(plan.params_key);
    return status == TW_OK ? 0 : 1;
}
