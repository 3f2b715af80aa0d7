/* The flag --cluster: predicts jobs of any framework, beside measured steps, and plans them with Thinwire. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trainer/plan/advice.h"
#include "trainer/plan/program.h"

/* The sets in the short table. */
static const char *const short_sets[] = {"zero3",    "zero3-lossless", "zeropp",
                                         "lossless", "delta-g4",       "delta4"};
/* Replaces a rate that is not given, so that it is no bottleneck. */
#define MOST_BPS 1e18
enum { N_SHORT = sizeof(short_sets) / sizeof(short_sets[0]) };

/* ---- flags --------------------------------------------------------------------------------------------- */

static tw_status_t find_file(const char *model)
{
    char path[4160];
    int is_file =
        access(model, R_OK) == 0 && strlen(model) > 5 && !strcmp(model + strlen(model) - 5, ".json");
    snprintf(path, sizeof(path), is_file ? "%s" : "%s/config.json", model);
    return access(path, R_OK) == 0 ? TW_OK : tw_fail(TW_ERR_IO, "--model: cannot read %s", path);
}

/* The flags' values, for keys that a case lacks. */
typedef struct usual {
    tw_plan_case_t given;
    char model[4160]; /* key of --model or --params; "": neither is given */
} usual_t;

/** Read the model's numbers of parameters and layers, and the sizes of a step, from the configuration. */
static tw_status_t read_options(const plan_t *plan, usual_t *usual)
{
    plan_t alone = *plan;
    tw_train_config_t *config;
    tw_model_t *made = NULL;
    alone.cluster.n_nodes = alone.cluster.ranks_per_node = 1;
    alone.sets[alone.n_sets] = usual->model;
    alone.n_sets += *usual->model != '\0';
    TW_TRY(plan_configure(&alone, tw_trainer_set_find("zero3"), &config));
    const tw_train_options_t *o = tw_train_config_options(config);
    usual->given.micro_batch = (double)o->micro_batch;
    usual->given.accumulation = (int)o->accumulation;
    usual->given.sequence = (double)o->sequence;
    tw_status_t status = *usual->model ? plan_model(o, &made) : TW_OK;
    if (made) {
        usual->given.n_params = (double)tw_model_n_params(made);
        usual->given.n_layers = (int)tw_model_n_units(made) - 1;
    }
    tw_model_destroy(made);
    tw_train_config_destroy(config);
    return status;
}

static tw_status_t read_usual(const plan_t *plan, usual_t *usual)
{
    *usual = (usual_t){.given = {.in_node_Bps = fmin(plan->cluster.in_node_bps, MOST_BPS) / 8.0,
                                 .flops = plan->cluster.device_flops,
                                 .gpu_memory_bytes = (double)plan->device_bytes}};
    if (plan->model) {
        TW_TRY(find_file(plan->model));
        snprintf(usual->model, sizeof(usual->model), "model.init_from=%s", plan->model);
    } else if (plan->params_key) {
        snprintf(usual->model, sizeof(usual->model), "%s", plan->params_key);
    }
    return read_options(plan, usual);
}

/* ---- here ---------------------------------------------------------------------------------------------- */

/* A case as a run of this trainer. `keys` has texts for plan.sets. */
typedef struct here {
    plan_t plan;
    char keys[6][96];
} here_t;

static void add_key(here_t *here, int i, const char *name, double value)
{
    snprintf(here->keys[i], sizeof(here->keys[i]), "%s=%.0f", name, value);
    here->plan.sets[here->plan.n_sets++] = here->keys[i];
}

/** Set up a case as a run of this trainer. GPUs compute, and each rank has a core that communicates. Gathers
 *  go two layers ahead, as in frameworks. */
static void begin_here(here_t *here, const plan_t *plan, const tw_plan_case_t *given,
                       const tw_plan_point_t *point, double token_sec, const char *model_key)
{
    double layer = given->n_params / given->n_layers;
    *here = (here_t){
        .plan = {.compute_sec = token_sec * point->micro_batch * point->accumulation * given->sequence,
                 .cluster = plan->cluster}};
    tw_plan_cluster_t *cluster = &here->plan.cluster;
    cluster->n_nodes = point->n_nodes;
    cluster->ranks_per_node = given->gpus_per_node;
    cluster->link_bps = 8.0 * point->link_Bps;
    cluster->in_node_bps = 8.0 * given->in_node_Bps;
    cluster->cores = 2.0 * given->gpus_per_node;
    cluster->device_bytes = given->gpu_memory_bytes;
    tw_plan_case_codecs(given, cluster->delta_bits, cluster->codecs);
    add_key(here, 0, "train_micro_batch_size_per_gpu", point->micro_batch);
    add_key(here, 1, "gradient_accumulation_steps", point->accumulation);
    add_key(here, 2, "thinwire.sequence_length", given->sequence);
    add_key(here, 3, "zero_optimization.stage3_prefetch_bucket_size", 2.0 * layer);
    add_key(here, 4, "zero_optimization.stage3_max_live_parameters", 8.0 * layer);
    if (given->recompute) {
        here->plan.sets[here->plan.n_sets++] = "thinwire.recompute=y";
    }
    if (model_key) {
        here->plan.sets[here->plan.n_sets++] = model_key;
    } else {
        add_key(here, 5, "model.n_params", given->n_params);
    }
}

static tw_status_t make_model(const here_t *here, tw_model_t **model)
{
    tw_train_config_t *config;
    TW_TRY(plan_configure(&here->plan, tw_trainer_set_find("zero3"), &config));
    tw_status_t status = plan_model(tw_train_config_options(config), model);
    tw_train_config_destroy(config);
    return status;
}

static int is_any_codec_unknown(const tw_plan_cluster_t *cluster)
{
    int is_any = 0;
    for (int c = TW_QUANT_PLAIN + 1; c < TW_QUANT_KINDS; c++) {
        is_any |= cluster->codecs[c].encode_sec == 0.0;
    }
    return is_any;
}

/** Plan rows of all sets except fp8, which GPUs lack here. Codecs without a given speed are measured once. */
static tw_status_t plan_here(plan_t *plan, const tw_plan_case_t *given, here_t *here)
{
    tw_model_t *model;
    TW_TRY(make_model(here, &model));
    tw_status_t status = TW_OK;
    if (is_any_codec_unknown(&here->plan.cluster)) {
        status = plan_speeds(&here->plan, model);
        memcpy(plan->cluster.codecs, here->plan.cluster.codecs, sizeof(plan->cluster.codecs));
        tw_plan_case_codecs(given, plan->cluster.delta_bits, here->plan.cluster.codecs);
    }
    const tw_trainer_set_t *set;
    for (size_t i = 0; status == TW_OK && (set = tw_trainer_set_get(i)); i++) {
        status = strcmp(set->name, TW_PLAN_FP8_SET) == 0 ? TW_OK : plan_row(&here->plan, set, model);
    }
    tw_model_destroy(model);
    return status;
}

static const tw_plan_row_t *find_row(const plan_t *plan, const char *name)
{
    for (size_t i = 0; i < plan->n_rows; i++) {
        if (strcmp(plan->rows[i].name, name) == 0) {
            return &plan->rows[i];
        }
    }
    return NULL;
}

/* ---- tables -------------------------------------------------------------------------------------------- */

static void print_case_head(const tw_plan_case_t *given, const tw_plan_point_t *point,
                            const tw_plan_case_time_t *today)
{
    printf("\n# %s: %d nodes of %d GPUs, %.4g GB/s a node, %.4g G parameters\n", given->name, point->n_nodes,
           given->gpus_per_node, point->link_Bps * 1e-9, given->n_params * 1e-9);
    printf("# a GPU takes %d x %g sequences of %g tokens a step", point->accumulation, point->micro_batch,
           given->sequence);
    if (given->gpu_memory_bytes > 0.0) {
        printf(", and has %.4g GB\n", given->gpu_memory_bytes * 1e-9);
    } else {
        printf("; what memory it has is not said (gpu_memory_bytes, --device-mem)\n");
    }
    printf("# today: %.3g s a step, of which a GPU computes %.3g s; the network alone takes %.3g s\n",
           today->step_sec, today->compute_sec, today->network_sec);
    printf("# here, all of it predicted; %s\n",
           given->codec_memory_Bps > 0.0 ? "codecs at the floors of a GPU's memory, which nobody has measured"
                                         : "codecs on a processor's core for each rank");
    printf("%-15s %9s %9s %12s %12s %10s  %s\n", "# set", "step, s", "of today", "GB a node", "GB a GPU",
           "codecs, s", "in PyTorch, with TW_FSDP=1");
}

/** Print a case's rows. "GB a node" is sent through its link in each direction; "GB a GPU" is memory. */
static void print_rows(const plan_t *plan, const tw_plan_case_time_t *today)
{
    for (size_t i = 0; i < plan->n_rows; i++) {
        const tw_plan_row_t *row = &plan->rows[i];
        printf("%-15s %9.3g %9.2f %12.3f %12.2f %10.3f  %s%s\n", row->name, row->time.step_sec,
               today->step_sec / row->time.step_sec, row->inter_node_bytes * 1e-9 / plan->cluster.n_nodes,
               tw_plan_row_device_bytes(row) * 1e-9, row->time.codec_sec,
               tw_plan_row_fits(row, &plan->cluster) ? "" : "too much memory  ",
               row->torch ? row->torch : "");
    }
}

/** Return the point that the case asks for, or, if its points have their own sizes, the largest of them. */
static tw_plan_point_t largest_point(const tw_plan_case_t *given)
{
    tw_plan_point_t point = {.n_nodes = given->n_nodes,
                             .micro_batch = given->micro_batch,
                             .accumulation = given->accumulation,
                             .link_Bps = given->link_Bps};
    for (size_t i = 0; i < given->n_points && given->n_nodes == 0; i++) {
        point = given->points[i].n_nodes >= point.n_nodes ? given->points[i] : point;
    }
    return point;
}

/** Predict a step at a point, as the job is today and with Thinwire. */
static tw_status_t predict_case(plan_t *plan, const tw_plan_case_t *given, const tw_plan_point_t *point,
                                const char *model_key, tw_plan_case_time_t *today, here_t *here)
{
    double token_sec;
    TW_TRY(tw_plan_case_fit(given, &token_sec));
    TW_TRY(tw_plan_case_predict(given, point, token_sec, today));
    begin_here(here, plan, given, point, token_sec, model_key);
    return plan_here(plan, given, here);
}

static tw_status_t print_case(plan_t *plan, const tw_plan_case_t *given, const char *model_key)
{
    tw_plan_point_t point = largest_point(given);
    tw_plan_case_time_t today;
    here_t here;
    TW_TRY(predict_case(plan, given, &point, model_key, &today, &here));
    print_case_head(given, &point, &today);
    print_rows(&here.plan, &today);
    return plan_print_advice(&here.plan, given, &point, &today);
}

static tw_status_t print_short(plan_t *plan, const tw_plan_cases_t *cases)
{
    printf("\n# steps in seconds at the largest size of each: today, and predicted here\n%-30s %8s", "# case",
           "today");
    for (int i = 0; i < N_SHORT; i++) {
        printf(" %14s", short_sets[i]);
    }
    printf("\n");
    for (size_t j = 0; j < cases->n; j++) {
        const tw_plan_case_t *given = &cases->list[j];
        tw_plan_point_t point = largest_point(given);
        tw_plan_case_time_t today;
        here_t here;
        TW_TRY(predict_case(plan, given, &point, NULL, &today, &here));
        printf("%-30s %8.3g", given->name, today.step_sec);
        for (int i = 0; i < N_SHORT; i++) {
            printf(" %14.3g", find_row(&here.plan, short_sets[i])->time.step_sec);
        }
        printf("\n");
    }
    return TW_OK;
}

static const tw_plan_case_t *find_case(const tw_plan_cases_t *cases, const char *name)
{
    for (size_t i = 0; i < cases->n; i++) {
        if (!name || strcmp(cases->list[i].name, name) == 0) {
            return &cases->list[i];
        }
    }
    return tw_fail(NULL, "--case: no case is called %s", name);
}

static tw_status_t print_cases(plan_t *plan, const tw_plan_cases_t *cases, const char *model_key)
{
    int is_one = plan->case_name || cases->n == 1;
    if (is_one) {
        const tw_plan_case_t *given = find_case(cases, plan->case_name);
        return given ? print_case(plan, given, model_key) : TW_ERR_NOT_FOUND;
    }
    TW_TRY(tw_plan_print_points(cases, stdout));
    return print_short(plan, cases);
}

tw_status_t plan_cases(plan_t *plan)
{
    static usual_t usual;
    tw_plan_cases_t *cases;
    TW_TRY(read_usual(plan, &usual));
    TW_TRY(tw_plan_cases_read(plan->cluster_file, &usual.given, &cases));
    tw_status_t status = TW_OK;
    if (cases->n == 0) {
        status = tw_fail(TW_ERR_FORMAT, "%s: cases: there are none", plan->cluster_file);
    }
    if (status == TW_OK) {
        status = print_cases(plan, cases, *usual.model ? usual.model : NULL);
    }
    tw_plan_cases_destroy(cases);
    return status;
}
