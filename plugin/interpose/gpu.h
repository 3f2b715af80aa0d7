/** What the interposer needs of CUDA besides the collectives. Errors are logged. Tests replace these
 *  functions. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Returns 1 if there are a GPU and a driver for the CUDA of this build; else 0 (logged, once). */
int tw_ip_gpu_works(void);
/** The number of the calling thread's GPU, for log lines; 0 where CUDA does not say. Logs nothing itself. */
int tw_ip_gpu_device(void);
/** 1 if the stream is being captured into a graph. Where CUDA does not say, 0, and the call then fails: this
 *  rank cannot leave it to NCCL alone, as the other ranks may not. */
int tw_ip_gpu_captures(tw_stream_t stream);
/** Record an event, a cudaEvent_t, on the stream. */
tw_status_t tw_ip_gpu_record(void *event, tw_stream_t stream);

/** A mark at a place on a stream: it notes the time when the stream gets there. */
typedef void *tw_ip_mark_t;

tw_status_t tw_ip_gpu_mark_create(tw_ip_mark_t *out);
void tw_ip_gpu_mark_destroy(tw_ip_mark_t mark);
tw_status_t tw_ip_gpu_mark_put(tw_ip_mark_t mark, tw_stream_t stream);
/** Returns the seconds between two marks. TW_IN_PROGRESS: the stream has not got there yet. */
tw_status_t tw_ip_gpu_mark_sec(tw_ip_mark_t from, tw_ip_mark_t to, double *sec);

TW_C_END
