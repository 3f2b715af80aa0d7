/* Prints on which links Thinwire helps, and what other methods help on slower ones. */
#include "trainer/plan/advice.h"

#include <math.h>
#include <string.h>

/* Smaller gains are within the noise. */
#define LEAST_GAIN 1.03
/* A GPU that computes for less than this share of a step is not worth its price. */
#define LEAST_BUSY 0.5

/* Other methods for even slower links: bits that each sends per parameter and optimizer step. Plain ZeRO-3
 * sends 48. Sources: arXiv 2501.18512 (its losses at 35 M to 1 G parameters), 2603.08163, 2102.02888. */
typedef struct method {
    const char *name;
    double bits;
    const char *costs;
} method_t;

static const method_t methods[] = {
    {"1-bit Adam", 2.0, "after a warm-up; another training; the model and its masters whole on every GPU"},
    {"Streaming DiLoCo, H = 30", 0.27,
     "another algorithm: the same loss at 1 G parameters, 1 to 4 % worse below;\n#     a node holds the "
     "model and two copies more; an outer rate to tune"},
    {"Streaming DiLoCo, H = 100", 0.08, "likewise, and each node goes 100 steps on its own"},
    {"SparseLoCo", 0.1, "another algorithm, with error feedback; 72 G parameters were trained at 110 Mb/s"},
};

/** Return the least time of a step: computing, or a row's bytes at link_rate (bytes a second) if longer. */
static double advice_least_sec(const plan_t *plan, const tw_plan_row_t *row, double link_rate)
{
    double link = row->inter_node_bytes / plan->cluster.n_nodes / link_rate;
    return fmax(link, plan->compute_sec);
}

/* The user's run as it is today, without Thinwire. */
typedef struct today {
    const tw_plan_case_t *given;
    const tw_plan_point_t *point;
    double token_sec;
} today_t;

static tw_status_t today_at(const today_t *today, double link_rate, double *sec)
{
    tw_plan_point_t other = *today->point;
    tw_plan_case_time_t time;
    other.link_Bps = link_rate;
    TW_TRY(tw_plan_case_predict(today->given, &other, today->token_sec, &time));
    *sec = time.step_sec;
    return TW_OK;
}

/* Range of links that are searched, in bytes a second. */
#define SLOWEST_LINK 1e5
#define FASTEST_LINK 1e14

/** Find the slowest link on which today's run is about as fast as the best row, or as on the fastest link.
 *  On the fastest link only delays are left, which Thinwire would have, too. */
static tw_status_t plain_enough(const plan_t *plan, const today_t *today, const tw_plan_row_t *best,
                                double *link_rate)
{
    double low = log(SLOWEST_LINK), high = log(FASTEST_LINK), least;
    TW_TRY(today_at(today, FASTEST_LINK, &least));
    for (int i = 0; i < 50; i++) {
        double at = (low + high) / 2.0, sec;
        TW_TRY(today_at(today, exp(at), &sec));
        *(sec > LEAST_GAIN * fmax(advice_least_sec(plan, best, exp(at)), least) ? &low : &high) = at;
    }
    *link_rate = exp(high);
    return TW_OK;
}

static void print_methods(const plan_t *plan)
{
    double zero3 = 0.0;
    for (size_t i = 0; i < plan->n_rows; i++) {
        zero3 = strcmp(plan->rows[i].name, "zero3") == 0 ? plan->rows[i].inter_node_bytes : zero3;
    }
    double sec = zero3 / plan->cluster.n_nodes / (plan->cluster.link_bps / 8.0);
    printf("# where that is not enough, others move less (bits a parameter and step; what links take of a "
           "step):\n");
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++) {
        printf("#   %s: %.2g bits, %.2g s; %s\n", methods[i].name, methods[i].bits,
               sec * methods[i].bits / 48.0, methods[i].costs);
    }
}

/** Print how many micro-batches would make computing half of a step. Thinwire sends only once a step. */
static void print_accumulation(const plan_t *plan, const tw_plan_row_t *best, const tw_plan_point_t *point)
{
    double link = best->inter_node_bytes / plan->cluster.n_nodes / (plan->cluster.link_bps / 8.0);
    double micro = plan->compute_sec / point->accumulation;
    printf("# accumulation: %.0f micro-batches a step instead of %d would keep the GPUs busy half of the "
           "time\n"
           "#   with %s, for a batch that much larger\n",
           ceil(LEAST_BUSY / (1.0 - LEAST_BUSY) * link / micro), point->accumulation, best->name);
}

static void print_best(const plan_t *plan, const tw_plan_row_t *best, const tw_plan_case_time_t *today)
{
    const tw_plan_row_t *lossless = tw_plan_row_fastest(plan->rows, plan->n_rows, &plan->cluster, 1);
    double beside = best->time.step_sec - plan->compute_sec;
    printf("\n# a step costs %.3g s beside its computing today, %.3g s with %s",
           today->step_sec - today->compute_sec, fmax(beside, 0.0), best->name);
    if (lossless && lossless != best) {
        printf(", with no change to any loss %.3g s with %s",
               fmax(lossless->time.step_sec - plan->compute_sec, 0.0), lossless->name);
    }
    printf("\n");
    tw_plan_print_torch(best, lossless ? lossless : best, stdout);
}

tw_status_t plan_print_advice(const plan_t *plan, const tw_plan_case_t *given, const tw_plan_point_t *point,
                              const tw_plan_case_time_t *time)
{
    const tw_plan_row_t *best = tw_plan_row_fastest(plan->rows, plan->n_rows, &plan->cluster, 0);
    double tokens = point->micro_batch * point->accumulation * given->sequence, enough;
    const today_t today = {given, point, time->compute_sec / tokens};
    if (!best) {
        printf("\n# nothing of ours fits into a GPU's %.4g GB: more GPUs, or a smaller model\n",
               plan->cluster.device_bytes * 1e-9);
        return TW_OK;
    }
    if (point->n_nodes == 1) {
        printf("\n# one node: no byte crosses a network, and this will not help you\n");
        return TW_OK;
    }
    TW_TRY(plain_enough(plan, &today, best, &enough));
    double busy_link = best->inter_node_bytes / plan->cluster.n_nodes / plan->compute_sec * LEAST_BUSY;
    print_best(plan, best, time);
    if (enough < 1.01 * SLOWEST_LINK) {
        printf("# on any link plain is as fast as anything of ours\n");
    } else {
        printf("# from %.3g Gb/s a node on plain is as fast as anything of ours, or waits for other things\n",
               enough * 8e-9);
    }
    printf("# below %.3g Gb/s a node nothing of ours keeps the GPUs busy for half of the time\n",
           busy_link * 8e-9);
    if (plan->cluster.link_bps / 8.0 < busy_link) {
        print_accumulation(plan, best, point);
        print_methods(plan);
    }
    return TW_OK;
}
