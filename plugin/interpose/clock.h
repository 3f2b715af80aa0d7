/** How long calls take on their streams: the GPU measures, and results are read later; nobody waits. */
#pragma once

#include "plugin/interpose/gpu.h"
#include "plugin/interpose/nccl_calls.h"

TW_C_BEGIN

#define TW_IP_CLOCK_CALLS 16

/** The calls of one communicator that are being timed. Zeroed: none. */
typedef struct tw_ip_clock {
    tw_ip_mark_t begin[TW_IP_CLOCK_CALLS], end[TW_IP_CLOCK_CALLS]; /**< NULL: not made yet */
    tw_ip_kind_t kind[TW_IP_CLOCK_CALLS];
    int is_open[TW_IP_CLOCK_CALLS];
} tw_ip_clock_t;

/** Note that a call begins on the stream. Returns its place; -1: none is free, it is not measured. */
int tw_ip_clock_begin(tw_ip_clock_t *clock, tw_ip_kind_t kind, tw_stream_t stream);
void tw_ip_clock_end(tw_ip_clock_t *clock, int at, tw_stream_t stream);
/** Tell the report about the calls that have ended. */
void tw_ip_clock_collect(tw_ip_clock_t *clock);
void tw_ip_clock_cleanup(tw_ip_clock_t *clock);

TW_C_END
