/** Runs one call of a collective by the library's collectives instead of NCCL's, on the caller's stream. */
#pragma once

#include "plugin/interpose/nccl_calls.h"
#include "quant/quant.h"

TW_C_BEGIN

/** A call to quantize if its communicator spans nodes (maybe not known yet). Run or drop it exactly once. */
typedef struct tw_ip_ready {
    struct tw_ip_comm *comm; /**< from tw_ip_comm_get */
    tw_ip_call_t call;       /**< without its configuration, if it was kept in a group */
    tw_quant_codec_t codec;
    float factor; /**< scalar of a PreMulSum; else 1 */
    void *event;  /**< cudaEvent_t to record after the call; NULL: none */
} tw_ip_ready_t;

/** Judge whether a call will be quantized. Returns 1 if so: the caller runs *ready once no group is open, or
 *  drops it. Otherwise returns 0, and counts the call for the report: the caller passes it to NCCL. */
int tw_ip_replace_judge(const tw_ip_call_t *call, tw_ip_ready_t *ready);
/** Enqueue the call on its stream, quantized, or let NCCL do so if its communicator is inside one node. The
 *  first such call of a communicator is collective and blocks (tw_ip_comm_learn). Releases `ready`. */
ncclResult_t tw_ip_replace_run(const tw_ip_ready_t *ready);
/** Release `ready` without running the call. */
void tw_ip_replace_drop(const tw_ip_ready_t *ready);

TW_C_END
