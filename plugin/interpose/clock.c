/** Times a call by two marks (timing events), which later calls reuse. Skips it if CUDA refuses a mark. */
#include "plugin/interpose/clock.h"

#include "plugin/interpose/report.h"

static int has_marks(tw_ip_clock_t *clock, int at)
{
    if (!clock->begin[at] && tw_ip_gpu_mark_create(&clock->begin[at]) != TW_OK) {
        clock->begin[at] = NULL;
    }
    if (!clock->end[at] && tw_ip_gpu_mark_create(&clock->end[at]) != TW_OK) {
        clock->end[at] = NULL;
    }
    return clock->begin[at] && clock->end[at];
}

int tw_ip_clock_begin(tw_ip_clock_t *clock, tw_ip_kind_t kind, tw_stream_t stream)
{
    tw_ip_clock_collect(clock);
    for (int at = 0; at < TW_IP_CLOCK_CALLS; at++) {
        if (clock->is_open[at]) {
            continue;
        }
        if (!has_marks(clock, at) || tw_ip_gpu_mark_put(clock->begin[at], stream) != TW_OK) {
            return -1;
        }
        clock->kind[at] = kind;
        return at;
    }
    return -1;
}

void tw_ip_clock_end(tw_ip_clock_t *clock, int at, tw_stream_t stream)
{
    clock->is_open[at] = tw_ip_gpu_mark_put(clock->end[at], stream) == TW_OK;
}

void tw_ip_clock_collect(tw_ip_clock_t *clock)
{
    for (int at = 0; at < TW_IP_CLOCK_CALLS; at++) {
        double sec = 0;
        tw_status_t status =
            clock->is_open[at] ? tw_ip_gpu_mark_sec(clock->begin[at], clock->end[at], &sec) : TW_IN_PROGRESS;
        if (status != TW_IN_PROGRESS) {
            clock->is_open[at] = 0;
        }
        if (status == TW_OK) {
            tw_ip_report_time(clock->kind[at], sec);
        }
    }
}

void tw_ip_clock_cleanup(tw_ip_clock_t *clock)
{
    for (int at = 0; at < TW_IP_CLOCK_CALLS; at++) {
        if (clock->begin[at]) {
            tw_ip_gpu_mark_destroy(clock->begin[at]);
        }
        if (clock->end[at]) {
            tw_ip_gpu_mark_destroy(clock->end[at]);
        }
    }
    *clock = (tw_ip_clock_t){0};
}
