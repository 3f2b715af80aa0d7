/** What is asked of CUDA besides the collectives. Errors are logged. Tests have another one. */
#ifndef TW_PLUGIN_INTERPOSE_GPU_H
#define TW_PLUGIN_INTERPOSE_GPU_H

#include "core/core.h"

TW_C_BEGIN

/** 1 if there is one, and a driver for the CUDA that this was built with; else 0 (logged, once). */
int tw_ip_gpu_works(void);
/** The calling thread's, for the log; 0 where CUDA does not say. Logs nothing. */
int tw_ip_gpu_device(void);
/** 1 if what is put on the stream goes into a graph. 0 also where CUDA does not say: then the call fails, as
 *  what this rank alone left to NCCL would meet something else on the others. */
int tw_ip_gpu_captures(tw_stream_t stream);
/** event: a cudaEvent_t. */
tw_status_t tw_ip_gpu_record(void *event, tw_stream_t stream);

/** A place on a stream and the time when it got there. */
typedef void *tw_ip_mark_t;

tw_status_t tw_ip_gpu_mark_create(tw_ip_mark_t *out);
void tw_ip_gpu_mark_destroy(tw_ip_mark_t mark);
tw_status_t tw_ip_gpu_mark_put(tw_ip_mark_t mark, tw_stream_t stream);
/** Seconds from one to the other. TW_IN_PROGRESS: the stream has not got there yet. */
tw_status_t tw_ip_gpu_mark_sec(tw_ip_mark_t from, tw_ip_mark_t to, double *sec);

TW_C_END

#endif
