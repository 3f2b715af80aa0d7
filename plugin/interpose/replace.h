/** Runs one call of a collective with ours in place of NCCL's, on the caller's stream and communicator. */
#pragma once

#include "plugin/interpose/nccl_calls.h"
#include "quant/quant.h"

TW_C_BEGIN

/** A call that the policy wants quantized. Whether its communicator spans nodes may not be known yet. The
 *  holder runs it or drops it. */
typedef struct tw_ip_ready {
    struct tw_ip_comm *comm; /**< from tw_ip_comm_get */
    tw_ip_call_t call;       /**< has no configuration, unless it is left to NCCL at once */
    tw_quant_codec_t codec;
    float factor; /**< scalar of a PreMulSum; else 1 */
    void *event;  /**< recorded afterwards; NULL: none */
} tw_ip_ready_t;

/** Judge a call. 1: run `ready`, outside of groups. 0: leave the call to NCCL; the report has counted it. */
int tw_ip_replace_judge(const tw_ip_call_t *call, tw_ip_ready_t *ready);
/** Run the call, once; or let NCCL run it, if its communicator is inside one node. Collective if the
 *  communicator is new. Enqueues and returns. */
ncclResult_t tw_ip_replace_run(const tw_ip_ready_t *ready);
/** Give the call up without running it. */
void tw_ip_replace_drop(const tw_ip_ready_t *ready);

TW_C_END
