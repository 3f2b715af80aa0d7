/** Measures how long calls take on their streams, without waiting: results are read at a later call. */
#pragma once

#include "plugin/interpose/gpu.h"
#include "plugin/interpose/nccl_calls.h"

TW_C_BEGIN

#define TW_IP_CLOCK_CALLS 16

/** The calls of one communicator that are being timed. A zeroed struct has none. */
typedef struct tw_ip_clock {
    tw_ip_mark_t begin[TW_IP_CLOCK_CALLS], end[TW_IP_CLOCK_CALLS]; /**< NULL: not made yet */
    tw_ip_kind_t kind[TW_IP_CLOCK_CALLS];
    int is_open[TW_IP_CLOCK_CALLS];
} tw_ip_clock_t;

/** Note that a call begins on the stream. Returns the index of its entry for tw_ip_clock_end, or -1 if no
 *  entry is free or CUDA refuses: that call is not measured. */
int tw_ip_clock_begin(tw_ip_clock_t *clock, tw_ip_kind_t kind, tw_stream_t stream);
void tw_ip_clock_end(tw_ip_clock_t *clock, int at, tw_stream_t stream);
/** Hand the times of all calls that have ended to tw_ip_report_time. */
void tw_ip_clock_collect(tw_ip_clock_t *clock);
void tw_ip_clock_cleanup(tw_ip_clock_t *clock);

TW_C_END
