/** What the interposer needs of CUDA besides the collectives. Errors are logged. Tests replace it. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** 1 if there are a GPU and a driver for the CUDA that this was built with; else 0 (logged, once). */
int tw_ip_gpu_works(void);
/** The calling thread's GPU, for log lines; 0 where CUDA does not say. Logs nothing itself. */
int tw_ip_gpu_device(void);
/** 1 if the stream is being captured into a graph. Where CUDA does not say, 0: then the call fails, because
 *  leaving it to NCCL on this rank alone would not fit what the other ranks do. */
int tw_ip_gpu_captures(tw_stream_t stream);
/** Record an event, a cudaEvent_t, on the stream. */
tw_status_t tw_ip_gpu_record(void *event, tw_stream_t stream);

/** A place on a stream, and the time when the stream got there. */
typedef void *tw_ip_mark_t;

tw_status_t tw_ip_gpu_mark_create(tw_ip_mark_t *out);
void tw_ip_gpu_mark_destroy(tw_ip_mark_t mark);
tw_status_t tw_ip_gpu_mark_put(tw_ip_mark_t mark, tw_stream_t stream);
/** Seconds from one mark to the other. TW_IN_PROGRESS: the stream has not got there yet. */
tw_status_t tw_ip_gpu_mark_sec(tw_ip_mark_t from, tw_ip_mark_t to, double *sec);

TW_C_END
