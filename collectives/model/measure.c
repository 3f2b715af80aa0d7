/** Measures in rounds that alternate between processor and tiers, so that a short disturbance spoils some
 *  readings of each instead of all readings of one. Member 0 then makes one model from the readings of all
 *  members and sends it to them. The processor is measured only for the first communicator of a process. */
#include "collectives/model/measuring.h"

#include <pthread.h>
#include <stdlib.h>

#define ROUNDS_LEAST 4 /**< so that quartile and median differ */
#define ROUNDS_MOST 6
/** readings per round; links inside a node are quick to measure, and easily disturbed */
#define NODE_REPEATS 2
/** no round beyond ROUNDS_LEAST begins after this time; a slow link needs fewer readings: each is longer */
#define ENOUGH_SEC 0.1
#define DOUBLES(type) (int)(sizeof(type) / sizeof(double))

/** Readings of the processor, kept for later communicators. The lock is needed because several threads may
 *  make communicators at the same time. */
static struct {
    pthread_mutex_t lock;
    int is_known;
    tw_cpu_sample_t best, typical;
} processor = {.lock = PTHREAD_MUTEX_INITIALIZER};

typedef struct readings {
    int rounds;
    tw_cpu_sample_t cpu[ROUNDS_MOST];
    tw_tier_sample_t inter[ROUNDS_MOST];
    tw_tier_sample_t node[ROUNDS_MOST * NODE_REPEATS];
} readings_t;

typedef struct measurement {
    tw_bootstrap_t *boot;
    tw_measure_link_t inter, node;
    int knows_processor;
    readings_t readings;
} measurement_t;

/** Do one round. All members measure their processors at the same time, so that the readings show if there
 *  are more ranks than cores. */
static tw_status_t measure_round(measurement_t *m, int round)
{
    const tw_topo_t *topo = m->boot->topo;
    int flag = 0;
    TW_TRY(tw_bootstrap_any(m->boot, &flag));
    if (!m->knows_processor) {
        TW_TRY(tw_measure_processor(&m->readings.cpu[round]));
    }
    if (topo->n_nodes > 1) {
        TW_TRY(tw_measure_link_read(&m->inter, &m->readings.inter[round]));
    }
    for (int i = 0; i < NODE_REPEATS && topo->max_local > 1; i++) {
        TW_TRY(tw_measure_link_read(&m->node, &m->readings.node[round * NODE_REPEATS + i]));
    }
    m->readings.rounds = round + 1;
    return TW_OK;
}

static tw_status_t measure_rounds(measurement_t *m)
{
    double start_sec = tw_time_sec();
    int enough = 0;
    tw_status_t status = TW_OK;
    for (int round = 0; round < ROUNDS_MOST && !enough && status == TW_OK; round++) {
        status = measure_round(m, round);
        if (status == TW_OK && round + 1 >= ROUNDS_LEAST) {
            enough = tw_time_sec() - start_sec > ENOUGH_SEC;
            status = tw_bootstrap_any(m->boot, &enough);
        }
    }
    return status;
}

static int is_processor_known(void)
{
    (void)pthread_mutex_lock(&processor.lock);
    int is_known = processor.is_known;
    (void)pthread_mutex_unlock(&processor.lock);
    return is_known;
}

/** Report the readings of the processor that were made with the first communicator of the process. */
static void summarize_processor(const readings_t *readings, tw_estimate_report_t *report)
{
    (void)pthread_mutex_lock(&processor.lock);
    if (!processor.is_known) {
        tw_estimate_values((const double *)readings->cpu, readings->rounds, DOUBLES(tw_cpu_sample_t),
                           (double *)&processor.best, (double *)&processor.typical);
        processor.is_known = 1;
    }
    report->best.cpu = processor.best;
    report->typical.cpu = processor.typical;
    (void)pthread_mutex_unlock(&processor.lock);
}

static void summarize(const readings_t *readings, tw_estimate_report_t *report)
{
    int n = readings->rounds;
    summarize_processor(readings, report);
    tw_estimate_values((const double *)readings->inter, n, DOUBLES(tw_tier_sample_t),
                       (double *)&report->best.inter, (double *)&report->typical.inter);
    tw_estimate_values((const double *)readings->node, n * NODE_REPEATS, DOUBLES(tw_tier_sample_t),
                       (double *)&report->best.node, (double *)&report->typical.node);
    tw_measure_host_init(&report->host);
}

static tw_status_t measure_agree(tw_bootstrap_t *boot, const tw_estimate_report_t *mine,
                                 tw_coll_model_t *model)
{
    const tw_topo_t *topo = boot->topo;
    tw_estimate_report_t *all = calloc((size_t)topo->world, sizeof(*all));
    TW_FAIL_IF(!all, TW_ERR_NO_MEMORY, "out of memory agreeing on the cost model");
    tw_status_t status = tw_bootstrap_gather(boot, mine, sizeof(*mine), (char *)all);
    if (status == TW_OK && topo->rank == 0) {
        tw_estimate_model(all, topo->world, topo->max_local, model);
    }
    free(all);
    return status == TW_OK ? tw_bootstrap_broadcast(boot, model, sizeof(*model)) : status;
}

tw_status_t tw_coll_model_measure(tw_bootstrap_t *boot, tw_coll_model_t *model)
{
    tw_estimate_report_t mine;
    measurement_t *m = calloc(1, sizeof(*m));
    TW_FAIL_IF(!m, TW_ERR_NO_MEMORY, "out of memory measuring the cost model");
    m->boot = boot;
    m->knows_processor = is_processor_known();
    tw_status_t status = tw_measure_link_init(&m->inter, boot, 1);
    status = status == TW_OK ? tw_measure_link_init(&m->node, boot, 0) : status;
    status = status == TW_OK ? measure_rounds(m) : status;
    if (status == TW_OK) {
        summarize(&m->readings, &mine);
        status = measure_agree(boot, &mine, model);
    }
    tw_measure_link_cleanup(&m->node);
    tw_measure_link_cleanup(&m->inter);
    free(m);
    return status;
}
