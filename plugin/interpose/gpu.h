/** CUDA calls of the interposer, except collectives. Errors are logged. Tests replace these functions. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Returns 1 if there is a GPU whose driver supports this build's CUDA version; else 0 (logged, once). */
int tw_ip_gpu_works(void);
/** Returns the number of the calling thread's GPU, for log lines; 0 if CUDA fails. Logs nothing itself. */
int tw_ip_gpu_device(void);
/** Returns 1 if the stream is being captured into a CUDA graph. Returns 0 if CUDA fails: then the quantized
 *  call fails, too. Answering 1 would leave the call to NCCL on this rank alone, and hang. */
int tw_ip_gpu_captures(tw_stream_t stream);
/** Record an event, a cudaEvent_t, on the stream. */
tw_status_t tw_ip_gpu_record(void *event, tw_stream_t stream);

/** A timing event (cudaEvent_t): put on a stream, it notes the time when the stream reaches it. */
typedef void *tw_ip_mark_t;

tw_status_t tw_ip_gpu_mark_create(tw_ip_mark_t *out);
void tw_ip_gpu_mark_destroy(tw_ip_mark_t mark);
tw_status_t tw_ip_gpu_mark_put(tw_ip_mark_t mark, tw_stream_t stream);
/** Read the seconds between two marks into *sec. TW_IN_PROGRESS: the stream has not reached both yet. */
tw_status_t tw_ip_gpu_mark_sec(tw_ip_mark_t from, tw_ip_mark_t to, double *sec);

TW_C_END
