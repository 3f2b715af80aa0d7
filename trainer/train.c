/* The trainer's program: a rank of a launcher's job, or a cluster in a box whose ranks run it again. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cluster/cluster.h"
#include "flags/flags.h"
#include "trainer/trainer.h"

#define MAX_SETS 256

typedef struct options {
    int n_nodes, ranks_per_node;
    double link_bps;
    const char *config, *metrics, *result;
    const char *sets[MAX_SETS + 4]; /* the flags --set, and keys that come from other flags */
    size_t n_sets;
    char *data, *device; /* texts "thinwire.data=...", "thinwire.device=..." */
    int print_config;
} options_t;

/* ---- flags --------------------------------------------------------------------------------------------- */

static void take_set(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *set)
{
    options_t *options = ctx;
    if (options->n_sets == MAX_SETS) {
        argp_error(state, "--%s: more than %d", flag->field.name, MAX_SETS);
        return;
    }
    options->sets[options->n_sets++] = set;
}

static void take_features(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *name)
{
    const tw_trainer_set_t *set = tw_trainer_set_find(name);
    if (!set) {
        argp_error(state, "--%s: there is no '%s'; see --help", flag->field.name, name);
        return;
    }
    for (const char *const *key = set->keys; *key; key++) {
        take_set(state, flag, ctx, *key);
    }
}

/** Turn --data into thinwire.data=..., and --device into thinwire.device=... */
static void take_key(struct argp_state *state, const tw_flag_t *flag, void *ctx, const char *value)
{
    char **key = (char **)((char *)ctx + flag->field.offset);
    free(*key);
    if (asprintf(key, "thinwire.%s=%s", flag->field.name, value) < 0) {
        *key = NULL;
        argp_failure(state, 1, ENOMEM, "--%s", flag->field.name);
    }
}

#define AT(member) offsetof(options_t, member)

static const tw_flag_t flag_list[] = {
    {.field = {"config", NULL, "FILE",
               "DeepSpeed configuration (default: lossless delta and lossless gradients, on a small GPT)",
               TW_CONFIG_STRING, AT(config), 0, 0, NULL},
     .letter = 'c'},
    {.field = {"set", NULL, "KEY=VALUE",
               "Any key of it: zero_optimization.stage=3, thinwire.weights=delta2; repeatable",
               TW_CONFIG_STRING, 0, 0, 0, NULL},
     .letter = 's',
     .take = take_set},
    {.field = {"features", NULL, "NAME",
               "Keys by one name: ddp, zero1, zero2, zero3, zero3-qwz, zero3-qgz, zero3-hpz, zeropp, delta8, "
               "delta4, delta2, delta, zero3-lossless, lossless, fp8, delta-g4, delta-ecdq-half, delta-ecdq",
               TW_CONFIG_STRING, 0, 0, 0, NULL},
     .take = take_features},
    {.field = {"data", NULL, "FILE", "UTF-8 text, .bin of tokens or .jsonl (default: the King James text)",
               TW_CONFIG_STRING, AT(data), 0, 0, NULL},
     .letter = 'd',
     .take = take_key},
    {.field = {"device", NULL, "NAME",
               "What the model computes on: cpu, cuda: a GPU for each rank (default: cpu)", TW_CONFIG_STRING,
               AT(device), 0, 0, NULL},
     .take = take_key},
    {.field = {"metrics", NULL, "FILE", "A JSON line for each step", TW_CONFIG_STRING, AT(metrics), 0, 0,
               NULL}},
    {.field = {"result", NULL, "FILE", "A JSON object of what the run came to", TW_CONFIG_STRING, AT(result),
               0, 0, NULL}},
    {.field =
         {"print-config", NULL, NULL,
          "Print every key, its value for --nodes and --ranks-per-node and where that comes from, and end",
          TW_CONFIG_BOOL, AT(print_config), 0, 0, NULL}},
    {.field = {"nodes", "2", "N", "Nodes of the cluster in a box", TW_CONFIG_INT32, AT(n_nodes), 1,
               TW_CLUSTER_MAX_NODES, NULL},
     .letter = 'n',
     .group = 2},
    {.field = {"ranks-per-node", "2", "L", "Ranks on each node", TW_CONFIG_INT32, AT(ranks_per_node), 1,
               TW_CLUSTER_MAX_RANKS, NULL},
     .letter = 'r'},
    {.field = {"link", "100mbit", "RATE", "Of each node, each way: 100mbit; none: not shaped", TW_CONFIG_RATE,
               AT(link_bps), 0, 0, NULL},
     .letter = 'l',
     .take = tw_flag_take_link},
};

/** Use the lossless delta by default, if no configuration or --set chooses how weights are sent. */
static void finish_sets(options_t *options)
{
    int is_said = options->config != NULL;
    for (size_t i = 0; i < options->n_sets; i++) {
        is_said |= strncmp(options->sets[i], "zero_optimization.", 18) == 0 ||
                   strncmp(options->sets[i], "thinwire.delta", 14) == 0 ||
                   strncmp(options->sets[i], "thinwire.lossless", 17) == 0 ||
                   strncmp(options->sets[i], "thinwire.hpz", 12) == 0;
    }
    if (!is_said) {
        options->sets[options->n_sets++] = "?thinwire.weights=delta";
        options->sets[options->n_sets++] = "?thinwire.gradients=lossless";
    }
    if (options->data) {
        options->sets[options->n_sets++] = options->data;
    }
    if (options->device) {
        options->sets[options->n_sets++] = options->device;
    }
}

static void parse(int argc, char **argv, options_t *options)
{
    static const tw_flags_t flags = {.flags = flag_list,
                                     .n_flags = sizeof(flag_list) / sizeof(flag_list[0]),
                                     .doc = "Trains GPT-2 or a Llama with ZeRO over slow links. Makes a "
                                            "cluster in a box, or joins a launcher's job.\v"
                                            "Without arguments: 2 nodes of 2 ranks behind links of 100 Mb/s, "
                                            "stage 3 with the lossless delta."};
    *options = (options_t){0};
    tw_flags_read(&flags, argc, argv, options);
    finish_sets(options);
}

/* ---- a rank's output ----------------------------------------------------------------------------------- */

typedef struct output {
    const char *path; /* path of the metrics; NULL: no metrics */
    FILE *metrics;    /* NULL until a step is done */
    int is_first, is_terminal;
    tw_trainer_output_t wanted;
    double begin_sec;
    uint64_t begin_step; /* the run's first step - 1 */
    /* Sums over the last steps, in which older steps count less. A step's waiting time is measured from one
     * norm to the next, its duration from its begin to its end. So only their sums can be compared. */
    double tokens, step_sec, wait_sec, bytes;
    double box_link_bps; /* rate of the links of a cluster in a box; 0: not in a box */
    tw_status_t status;
} output_t;

static void print_threads(const tw_trainer_output_t *wanted)
{
    int least = wanted->least_threads, most = wanted->most_threads;
    char least_text[16] = "";
    if (least < most) {
        snprintf(least_text, sizeof(least_text), "%d to ", least);
    }
    printf("# %d ranks on %d nodes, each computes with %s%d thread%s\n", wanted->world, wanted->n_nodes,
           least_text, most, most > 1 ? "s" : "");
}

static void add_step(output_t *output, const tw_trainer_step_t *step)
{
    const double keep = 0.9;
    if (output->begin_sec == 0 && output->is_first && output->wanted.resumed_step > 0) {
        printf("# goes on from step %" PRIu64 " of run %016" PRIx64 "\n", output->wanted.resumed_step,
               output->wanted.run_id);
    }
    if (output->begin_sec == 0 && output->is_first) {
        print_threads(&output->wanted);
    }
    if (output->begin_sec == 0) {
        output->begin_sec = tw_time_sec() - step->step_sec;
        output->begin_step = step->step - 1;
    }
    output->tokens = keep * output->tokens + (double)step->tokens;
    output->step_sec = keep * output->step_sec + step->step_sec;
    output->wait_sec = keep * output->wait_sec + step->wait_sec;
    output->bytes = keep * output->bytes + (double)step->inter_node_bytes;
    if (output->wanted.link_bps == 0) {
        output->wanted.link_bps = output->box_link_bps;
    }
}

/** Write the share of the processors' peak FLOP/s that is reached, or the FLOP/s if the peak is not known. */
static void format_flops(const output_t *output, char *text, size_t n)
{
    const tw_trainer_output_t *wanted = &output->wanted;
    double flops = output->tokens / output->step_sec * wanted->flops_per_token / wanted->world;
    if (wanted->peak_flops > 0) {
        snprintf(text, n, "MFU %.1f %%", 100 * flops / wanted->peak_flops);
    } else {
        snprintf(text, n, "%.2f GFLOP/s a rank", flops * 1e-9);
    }
}

/** Return the used share of a node's link in each direction. */
static double link_share(const tw_trainer_output_t *wanted, double bytes, double sec)
{
    return wanted->link_bps > 0 && sec > 0 ? 8 * bytes / wanted->n_nodes / sec / wanted->link_bps : 0;
}

static void format_link(const output_t *output, char *text, size_t n)
{
    double share = link_share(&output->wanted, output->bytes, output->step_sec);
    snprintf(text, n, "%s", "");
    if (share > 0) {
        snprintf(text, n, " (%.0f %% of the link)", 100 * share);
    }
}

/** Write a text such as "5400 s left, ends Tue 03:14". */
static void format_end(double left_sec, char *text, size_t n)
{
    time_t end = time(NULL) + (time_t)left_sec;
    struct tm local;
    char when[32] = "";
    if (localtime_r(&end, &local)) {
        (void)strftime(when, sizeof(when), ", ends %a %H:%M", &local);
    }
    snprintf(text, n, "%.0f s left%s", left_sec, when);
}

/** Print a line of progress, the most important figures first, since a terminal may cut the line. */
static void print_live(const output_t *output, const tw_trainer_step_t *step)
{
    double elapsed = tw_time_sec() - output->begin_sec;
    double left =
        elapsed / (double)(step->step - output->begin_step) * (double)(output->wanted.n_steps - step->step);
    char val[32] = "", flops[48], link[48], end[64], line[384];
    if (!isnan(step->val_loss)) {
        snprintf(val, sizeof(val), "  val %.4f", step->val_loss);
    }
    format_flops(output, flops, sizeof(flops));
    format_link(output, link, sizeof(link));
    format_end(left, end, sizeof(end));
    snprintf(line, sizeof(line),
             "step %" PRIu64 "/%" PRIu64
             "  loss %.4f%s%s  %.0f tokens/s  %s  %s  waiting %.0f %%  %.2f MB/step between nodes%s",
             step->step, output->wanted.n_steps, step->loss, val, step->is_bad ? "  BAD" : "",
             output->tokens / output->step_sec, flops, end, 100 * output->wait_sec / output->step_sec,
             (double)step->inter_node_bytes * 1e-6, link);
    if (output->is_terminal) {
        tw_terminal_show(stdout, line);
    } else {
        printf("%s\n", line);
        fflush(stdout);
    }
}

static void print_breakdown(const tw_trainer_step_t *step)
{
    double rest = step->step_sec - step->forward_sec - step->backward_sec - step->update_sec;
    printf("  forward %.1f ms, backward %.1f, rest of the reductions and norm %.1f, update %.1f; of all that "
           "%.1f waiting\n",
           1e3 * step->forward_sec, 1e3 * step->backward_sec, 1e3 * rest, 1e3 * step->update_sec,
           1e3 * step->wait_sec);
}

static tw_status_t cannot_write(const char *path)
{
    return tw_fail(TW_ERR_IO, "%s: cannot write: %s", path, strerror(errno));
}

/** Check that the file can be written. It is not emptied before a run has done a step. */
static tw_status_t try_metrics(const char *path)
{
    FILE *file = path ? fopen(path, "ae") : NULL;
    if (path && !file) {
        return cannot_write(path);
    }
    return !file || fclose(file) == 0 ? TW_OK : cannot_write(path);
}

/** End the last line. A killed process may have left it incomplete. */
static void end_line(FILE *file)
{
    const int is_open = fseek(file, -1, SEEK_END) == 0 && fgetc(file) != '\n';
    (void)fseek(file, 0, SEEK_END); /* C asks for this between a read and a write */
    if (is_open) {
        (void)fputc('\n', file);
    }
}

static FILE *open_metrics(const char *path, int goes_on)
{
    FILE *file = fopen(path, goes_on ? "a+e" : "we");
    if (file && goes_on) {
        end_line(file);
    }
    return file;
}

static tw_status_t write_metrics(FILE *file, const tw_trainer_output_t *wanted, const tw_trainer_step_t *step)
{
    tw_json_t *json = tw_json_create();
    char run[17];
    snprintf(run, sizeof(run), "%016" PRIx64, wanted->run_id);
    tw_json_add_string(json, "run", run);
    tw_json_add_int(json, "step", (int64_t)step->step);
    tw_json_add_double(json, "loss", step->loss);
    tw_json_add_double(json, "lr", step->lr);
    tw_json_add_double(json, "grad_norm", step->grad_norm);
    tw_json_add_int(json, "tokens", (int64_t)step->tokens);
    tw_json_add_double(json, "step_sec", step->step_sec);
    tw_json_add_double(json, "wait_sec", step->wait_sec);
    tw_json_add_int(json, "threads", wanted->n_threads);
    tw_json_add_double(json, "compute_processor_sec", step->compute_processor_sec);
    tw_json_add_double(json, "progress_processor_sec", step->progress_processor_sec);
    tw_json_add_double(json, "update_processor_sec", step->update_processor_sec);
    tw_json_add_double(json, "exchange_processor_sec", step->exchange_processor_sec);
    tw_json_add_int(json, "inter_node_bytes", (int64_t)step->inter_node_bytes);
    tw_json_add_int(json, "in_node_bytes", (int64_t)step->in_node_bytes);
    tw_json_add_int(json, "memory_bytes", (int64_t)step->memory_bytes);
    if (step->delta_bits > 0) {
        tw_json_add_double(json, "delta_bits", step->delta_bits);
    }
    if (!isnan(step->val_loss)) {
        tw_json_add_double(json, "val_loss", step->val_loss);
    }
    if (!isnan(step->gradients_error)) {
        tw_json_add_double(json, "gradients_error", step->gradients_error);
        tw_json_add_double(json, "gradients_zeroed", step->gradients_zeroed);
    }
    if (!isnan(step->weights_error)) {
        tw_json_add_double(json, "weights_error", step->weights_error);
    }
    if (step->is_bad) {
        tw_json_add_int(json, "bad", 1);
    }
    double flops = (double)step->tokens * wanted->flops_per_token / wanted->world / step->step_sec;
    tw_json_add_double(json, "flops", flops);
    if (wanted->peak_flops > 0) {
        tw_json_add_double(json, "mfu", flops / wanted->peak_flops);
    }
    if (wanted->link_bps > 0) {
        tw_json_add_double(json, "link_share",
                           link_share(wanted, (double)step->inter_node_bytes, step->step_sec));
    }
    tw_status_t status = tw_json_write_line(json, file);
    tw_json_destroy(json);
    return status;
}

static tw_status_t prepare_output(void *ctx)
{
    const output_t *output = ctx;
    return try_metrics(output->path);
}

/** Print a sampled text in one line: newlines are escaped, other control characters become blanks. */
static void print_sample(uint64_t step, const char *text)
{
    printf("# step %" PRIu64 ", sampled: ", step);
    for (; *text; text++) {
        if (*text == '\n') {
            (void)fputs("\\n", stdout);
        } else {
            putchar((unsigned char)*text < ' ' || *text == 0x7f ? ' ' : *text);
        }
    }
    printf("\n");
    fflush(stdout);
}

static tw_status_t write_sample(FILE *file, uint64_t run_id, uint64_t step, const char *text)
{
    tw_json_t *json = tw_json_create();
    char run[17];
    snprintf(run, sizeof(run), "%016" PRIx64, run_id);
    tw_json_add_string(json, "run", run);
    tw_json_add_int(json, "step", (int64_t)step);
    tw_json_add_string(json, "sample", text);
    tw_status_t status = tw_json_write_line(json, file);
    tw_json_destroy(json);
    return status;
}

static void note_written(output_t *output, tw_status_t status)
{
    output->status = status;
    if (status != TW_OK) {
        tw_error("--metrics: cannot write: %s", tw_status_string(status));
    }
}

static void need_metrics(output_t *output, int goes_on)
{
    if (output->path && !output->metrics && output->status == TW_OK) {
        output->metrics = open_metrics(output->path, goes_on);
        output->status = output->metrics ? TW_OK : cannot_write(output->path);
    }
}

/** Write a sampled text after its step's line in the metrics. In a run without steps, append it. */
static void on_sample(void *ctx, uint64_t step, const char *text)
{
    output_t *output = ctx;
    if (output->is_terminal && output->begin_sec > 0) {
        printf("\n");
    }
    print_sample(step, text);
    need_metrics(output, 1);
    if (output->metrics && output->status == TW_OK) {
        note_written(output, write_sample(output->metrics, output->wanted.run_id, step, text));
    }
}

static void train_on_step(void *ctx, const tw_trainer_step_t *step)
{
    output_t *output = ctx;
    add_step(output, step);
    if (output->is_first && (output->is_terminal || step->step == 1 || step->step == output->wanted.n_steps ||
                             step->step % output->wanted.steps_per_print == 0)) {
        print_live(output, step);
        if (output->wanted.breakdown) {
            print_breakdown(step);
        }
    }
    need_metrics(output, output->wanted.resumed_step > 0);
    if (output->metrics && output->status == TW_OK) {
        note_written(output, write_metrics(output->metrics, &output->wanted, step));
    }
}

static void print_summary(const tw_trainer_result_t *r)
{
    printf("# %d ranks on %d nodes, stage %d, %" PRIu64 " parameters, %" PRIu64 " steps, %" PRIu64
           " tokens in %.1f s\n",
           r->world, r->n_nodes, r->stage, r->n_params, r->steps, r->tokens, r->total_sec);
    if (r->is_stopped) {
        printf("# asked to end: stopped before thinwire.steps\n");
    }
    if (r->steps == 0 && !isnan(r->val_loss)) {
        printf("# validation %.6f\n", r->val_loss);
        return;
    }
    if (r->steps == 0) {
        printf("# nothing to do: all of thinwire.steps are done\n");
        return;
    }
    double plain = 3.0 * 2.0 * (double)r->n_params * (r->n_nodes - 1),
           sent = (double)r->inter_node_bytes / (double)r->steps;
    char val[48] = "no validation";
    if (!isnan(r->val_loss)) {
        snprintf(val, sizeof(val), "validation %.4f", r->val_loss);
    }
    printf("# loss %.4f -> %.4f, %s; %.1f ms a step, %.0f %% of it waiting for the network\n", r->first_loss,
           r->last_loss, val, 1e3 * r->step_sec, 100 * r->wait_share);
    printf("# %.3f MB a step between nodes", sent * 1e-6);
    if (plain > 0) {
        printf(", %.3f of plain ZeRO-3's %.3f", sent / plain, plain * 1e-6);
    }
    if (r->delta_bits > 0) {
        printf("; weights' changes: %.2f bits a parameter", r->delta_bits);
    }
    if (r->lag_blocks > 0) {
        printf("\n# %" PRIu64 " blocks lagged more than thinwire.lag_bound, at the end up to %.2f updates",
               r->lag_blocks, r->lag_max);
    }
    printf("\n# memory of a rank: up to %.1f MB, planned %.1f; %.1f on the device",
           (double)r->peak_rss_bytes * 1e-6, (double)r->planned_rss_bytes * 1e-6,
           (double)r->device_bytes * 1e-6);
    if (r->file_bytes > 0) {
        printf(", %.1f of all ranks in files", (double)r->file_bytes * 1e-6);
    }
    printf("\n# bytes %s, replicas %s\n", r->bytes_as_planned ? "as planned" : "NOT AS PLANNED",
           r->replicas_equal ? "equal" : "NOT EQUAL");
}

static tw_status_t write_result(const options_t *options, const tw_trainer_result_t *r)
{
    FILE *file = fopen(options->result, "we");
    if (!file) {
        return cannot_write(options->result);
    }
    tw_json_t *json = tw_json_create();
    tw_json_add_int(json, "stage", r->stage);
    tw_json_add_int(json, "nodes", r->n_nodes);
    tw_json_add_int(json, "world", r->world);
    tw_json_add_double(json, "link_bps", options->link_bps);
    tw_json_add_int(json, "params", (int64_t)r->n_params);
    tw_json_add_int(json, "steps", (int64_t)r->steps);
    tw_json_add_int(json, "tokens", (int64_t)r->tokens);
    tw_json_add_double(json, "step_sec", r->step_sec);
    tw_json_add_double(json, "wait_share", r->wait_share);
    tw_json_add_double(json, "first_loss", r->first_loss);
    tw_json_add_double(json, "last_loss", r->last_loss);
    tw_json_add_double(json, "val_loss", r->val_loss);
    tw_json_add_double(json, "delta_bits", r->delta_bits);
    tw_json_add_int(json, "inter_node_bytes", (int64_t)r->inter_node_bytes);
    tw_json_add_int(json, "in_node_bytes", (int64_t)r->in_node_bytes);
    tw_json_add_int(json, "load_inter_node_bytes", (int64_t)r->load_inter_node_bytes);
    tw_json_add_int(json, "val_inter_node_bytes", (int64_t)r->val_inter_node_bytes);
    tw_json_add_int(json, "upkeep_inter_node_bytes", (int64_t)r->upkeep_inter_node_bytes);
    tw_json_add_int(json, "peak_rss_bytes", (int64_t)r->peak_rss_bytes);
    tw_json_add_int(json, "planned_rss_bytes", (int64_t)r->planned_rss_bytes);
    tw_json_add_int(json, "before_rss_bytes", (int64_t)r->before_rss_bytes);
    tw_json_add_bool(json, "bytes_as_planned", r->bytes_as_planned);
    tw_json_add_bool(json, "replicas_equal", r->replicas_equal);
    tw_json_add_bool(json, "losses_finite", r->losses_finite);
    tw_status_t status = tw_json_write_line(json, file);
    tw_json_destroy(json);
    return fclose(file) == 0 ? status : cannot_write(options->result);
}

/* ---- the program --------------------------------------------------------------------------------------- */

/* Exit code of a run that was asked to end and can be started again: EX_TEMPFAIL of sysexits.h. */
#define EXIT_STOPPED 75

static volatile sig_atomic_t is_asked_to_end;
static volatile time_t asked_sec; /* only the handler uses it, on any thread */

static time_t monotonic_sec(void)
{
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

/** Handle a signal that asks to end. The first ends the run after its current step, a later one at once. */
static void ask_to_end(int number)
{
    if (!is_asked_to_end) {
        asked_sec = monotonic_sec();
        is_asked_to_end = 1;
    } else if (monotonic_sec() - asked_sec > TW_CLUSTER_SAME_REQUEST_SEC) {
        (void)signal(number, SIG_DFL);
        (void)raise(number);
    }
}

/** Catch the signals by which launchers and terminals ask to end, unless they are ignored (nohup). The
 *  handler has a stack of its own: while oneDNN multiplies, the stack pointer may point into oneDNN's data,
 *  which a handler on the thread's stack would overwrite. */
static void catch_requests(void)
{
    static const int requests[] = {SIGTERM, SIGINT, SIGHUP};
    static char stack[64 << 10];
    const stack_t own = {.ss_sp = stack, .ss_size = sizeof(stack)};
    if (sigaltstack(&own, NULL) != 0) {
        tw_warn("no stack for signals: %s", strerror(errno));
        return;
    }
    for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
        struct sigaction before, action = {.sa_handler = ask_to_end, .sa_flags = SA_RESTART | SA_ONSTACK};
        if (sigaction(requests[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN) {
            (void)sigaction(requests[i], &action, NULL);
        }
    }
}

static int exit_code_of(tw_status_t status, const tw_trainer_result_t *result)
{
    int is_good = result->steps == 0 || (result->bytes_as_planned && result->replicas_equal);
    if (status != TW_OK || !is_good) {
        return 1;
    }
    return result->is_stopped ? EXIT_STOPPED : 0;
}

static int train_run_rank(const options_t *options)
{
    output_t output = {0};
    tw_coll_params_t coll_params = {.mem = TW_MEM_HOST, .deterministic = 1, .progress_thread = 1};
    tw_trainer_params_t params = {.config = options->config,
                                  .sets = options->sets,
                                  .n_sets = options->n_sets,
                                  .prepare = prepare_output,
                                  .on_step = train_on_step,
                                  .on_sample = on_sample,
                                  .ctx = &output,
                                  .output = &output.wanted,
                                  .stop = &is_asked_to_end};
    tw_trainer_result_t result = {0};
    tw_status_t status = tw_coll_world_create(&coll_params, &params.coll);
    if (status != TW_OK) {
        return 1;
    }
    catch_requests();
    output.is_first = tw_coll_rank(params.coll) == 0;
    output.box_link_bps = tw_cluster_kind() == TW_CLUSTER_NODES ? options->link_bps : 0;
    /* Open MPI's ranks always have a terminal, even if their output goes to a file */
    output.is_terminal = output.is_first && isatty(STDOUT_FILENO) && !getenv("OMPI_COMM_WORLD_RANK");
    output.path = output.is_first ? options->metrics : NULL;
    status = tw_trainer_run(&params, &result);
    if (output.is_terminal && output.begin_sec > 0) {
        printf("\n");
    }
    if (status == TW_OK && output.is_first) {
        print_summary(&result);
        status = options->result ? write_result(options, &result) : TW_OK;
    }
    if (output.metrics && fclose(output.metrics) != 0 && output.status == TW_OK) {
        output.status = cannot_write(output.path);
    }
    tw_coll_destroy(params.coll);
    return exit_code_of(status == TW_OK ? output.status : status, &result);
}

/** Check the run before ranks are started, so that an error is logged once. */
static int is_usable(const options_t *options)
{
    const tw_trainer_params_t params = {
        .config = options->config, .sets = options->sets, .n_sets = options->n_sets};
    return try_metrics(options->metrics) == TW_OK &&
           tw_trainer_check(&params, options->n_nodes * options->ranks_per_node, options->n_nodes) == TW_OK;
}

/** Start a cluster in a box. Its ranks run this program. */
static int train_run_cluster(const options_t *options, char **argv)
{
    if (!is_usable(options)) {
        return 1;
    }
    tw_cluster_params_t params = {.n_nodes = options->n_nodes,
                                  .ranks_per_node = options->ranks_per_node,
                                  .link_bps = options->link_bps,
                                  .argv = (const char *const *)argv};
    int exit_code = 1;
    return tw_cluster_run_self(&params, &exit_code) == TW_OK ? exit_code : 1;
}

int main(int argc, char **argv)
{
    options_t options;
    int code;
    parse(argc, argv, &options);
    if (options.print_config) {
        const tw_trainer_params_t params = {
            .config = options.config, .sets = options.sets, .n_sets = options.n_sets};
        int world = options.n_nodes * options.ranks_per_node;
        code = tw_trainer_print_config(&params, world, options.n_nodes, stdout) == TW_OK ? 0 : 1;
    } else {
        code = tw_coll_launched() ? train_run_rank(&options) : train_run_cluster(&options, argv);
    }
    free(options.data);
    free(options.device);
    return code;
}
