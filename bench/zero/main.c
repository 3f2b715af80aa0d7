/* Set after set and seed after seed: this program again, as the ranks of a cluster. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/columns.h"
#include "bench/zero/zero.h"
#include "cluster/cluster.h"

#define MAX_ARGS 64
#define ZERO_PARAMS_FACTOR 2.0 /* a model of `--params`, about, has fewer than so many times as many */

typedef struct bench {
    zero_options_t options;
    char *const *argv;
    int argc;
    char out[PATH_MAX];
    FILE *json; /* or NULL */
    zero_rows_t rows, rounds;
    int all_ok, is_over; /* is_over: no run can come to anything */
} bench_t;

/* ---- a run --------------------------------------------------------------------------------------------- */

static tw_status_t zero_start(const bench_t *bench, const tw_trainer_set_t *set, int64_t seed, int64_t round)
{
    char child[64], child_seed[64], child_round[64], child_out[PATH_MAX + 16];
    const char *argv[MAX_ARGS + 5];
    int n = 0, exit_code = 0;

    snprintf(child, sizeof(child), "--child=%s", set->name);
    snprintf(child_seed, sizeof(child_seed), "--child-seed=%" PRId64, seed);
    snprintf(child_round, sizeof(child_round), "--child-round=%" PRId64, round + 1);
    snprintf(child_out, sizeof(child_out), "--child-out=%s", bench->out);
    for (; n < bench->argc && n < MAX_ARGS; n++) {
        argv[n] = bench->argv[n];
    }
    argv[n++] = child;
    argv[n++] = child_seed;
    argv[n++] = child_out;
    argv[n++] = child_round;
    argv[n] = NULL;
    const tw_cluster_params_t params = {.n_nodes = bench->options.n_nodes,
                                        .ranks_per_node = bench->options.ranks_per_node,
                                        .link_bps = bench->options.link_bps,
                                        .argv = argv};
    tw_status_t status = tw_cluster_run_self(&params, &exit_code);
    TW_FAIL_IF(status == TW_OK && exit_code != 0, TW_ERR_INTERNAL, "%s, seed %" PRId64 ": ended with %d",
               set->name, seed, exit_code);
    return status;
}

/** The smallest model depends on the tokens of the data, so that it is known once one was trained. */
static tw_status_t zero_check_params(bench_t *bench, int64_t params)
{
    if ((double)params < ZERO_PARAMS_FACTOR * bench->options.params) {
        return TW_OK;
    }
    tw_error("--params: %.0f is too small: at least %" PRId64
             " (the smallest model for this data has %" PRId64 ")",
             bench->options.params, (int64_t)((double)params / ZERO_PARAMS_FACTOR) + 1, params);
    bench->is_over = 1;
    return TW_ERR_CONFIG;
}

/** Read the row that rank 0 has left. */
static tw_status_t read_round(bench_t *bench)
{
    zero_row_t row;
    TW_TRY(zero_row_read(bench->out, &row));
    TW_TRY(zero_rows_append(&bench->rounds, &row));
    return zero_check_params(bench, row.params);
}

/** Make a set's row of all its rounds, compare it with the base's, and write it. */
static tw_status_t zero_finish(bench_t *bench, const char *set, int64_t seed)
{
    zero_row_t row;
    TW_TRY(zero_rows_middle(&bench->rounds, set, seed, &row));
    const zero_row_t *base =
        strcmp(set, ZERO_BASE) == 0 ? &row : zero_rows_find(&bench->rows, ZERO_BASE, seed);
    if (base) {
        zero_row_compare(&row, base);
    }
    TW_TRY(zero_rows_append(&bench->rows, &row));
    return bench_table_write(&zero_table, &row, bench->json);
}

static tw_status_t run_round(bench_t *bench, const tw_trainer_set_t *set, int64_t seed, int64_t round)
{
    TW_TRY(zero_start(bench, set, seed, round));
    TW_TRY(read_round(bench));
    if (round < bench->options.n_rounds - 1) {
        zero_report_round(&bench->options, round, &bench->rounds.rows[bench->rounds.n_rows - 1]);
        return TW_OK;
    }
    return zero_finish(bench, set->name, seed);
}

static void run_one(bench_t *bench, const tw_trainer_set_t *set, int64_t seed, int64_t round)
{
    bench->all_ok &= run_round(bench, set, seed, round) == TW_OK;
    const zero_row_t *row = zero_rows_find(&bench->rows, set->name, seed);
    if (row) {
        zero_report_row(row);
        bench->all_ok &= row->ok;
    }
}

/** Run the base first: the others are compared with it. */
static void run_sets(bench_t *bench, int64_t seed, int64_t round)
{
    const zero_options_t *options = &bench->options;
    for (int is_base = 1; is_base >= 0; is_base--) {
        for (size_t i = 0; i < options->n_sets; i++) {
            if ((strcmp(options->sets[i]->name, ZERO_BASE) == 0) == is_base && !bench->is_over) {
                run_one(bench, options->sets[i], seed, round);
            }
        }
    }
}

static void run_all(bench_t *bench)
{
    const zero_options_t *options = &bench->options;
    for (int64_t seed = options->first_seed; seed < options->first_seed + options->n_seeds; seed++) {
        for (int64_t round = 0; round < options->n_rounds; round++) {
            run_sets(bench, seed, round);
        }
    }
}

/* ---- files --------------------------------------------------------------------------------------------- */

static tw_status_t make_out(bench_t *bench)
{
    const char *folder = getenv("TMPDIR");
    snprintf(bench->out, sizeof(bench->out), "%s/thinwire-zero.XXXXXX", folder ? folder : "/tmp");
    int fd = mkstemp(bench->out);
    TW_FAIL_IF(fd < 0, TW_ERR_IO, "%s: %s", bench->out, strerror(errno));
    close(fd);
    return TW_OK;
}

static int run_bench(bench_t *bench)
{
    const zero_options_t *options = &bench->options;
    tw_status_t status = bench_json_open(options->json, BENCH_JSON_ANEW, &bench->json);

    if (options->metrics) {
        (void)unlink(options->metrics); /* runs append to it */
    }
    status = status == TW_OK ? make_out(bench) : status;
    if (status != TW_OK) {
        return 1;
    }
    bench->all_ok = 1;
    zero_report_head(options);
    run_all(bench);
    zero_report_seeds(options, &bench->rows);
    (void)unlink(bench->out);
    status = bench_json_close(options->json, bench->json, status);
    return bench->all_ok && status == TW_OK ? 0 : 1;
}

int main(int argc, char **argv)
{
    bench_t bench = {.argv = argv, .argc = argc};

    zero_options_parse(argc, argv, &bench.options);
    if (bench.options.child) {
        return zero_rank_run(&bench.options);
    }
    TW_FAIL_IF(argc > MAX_ARGS, 2, "more than %d arguments", MAX_ARGS);
    int code = run_bench(&bench);
    zero_rows_cleanup(&bench.rows);
    zero_rows_cleanup(&bench.rounds);
    return code;
}
