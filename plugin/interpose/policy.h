/** Which calls are quantized, and how. All ranks must have the same policy. */
#pragma once

#include "plugin/interpose/nccl_calls.h"
#include "quant/quant.h"

TW_C_BEGIN

/** Why a call was left to NCCL. */
typedef enum tw_ip_reason {
    TW_IP_REPLACED, /**< the call was not left to NCCL */
    TW_IP_PLAIN,
    TW_IP_ASKED_PLAIN,
    TW_IP_SMALL,
    TW_IP_TYPE,
    TW_IP_REDUCTION,
    TW_IP_SCALAR,
    TW_IP_NO_CODEC,
    TW_IP_CAPTURED,
    TW_IP_ONE_NODE,
    TW_IP_ONE_PROCESS,
    TW_IP_DIFFERENT,
    TW_IP_ABSENT,
    TW_IP_GROWN,
    TW_IP_ENDED,
    TW_IP_ARGUMENTS,
    TW_IP_REASONS
} tw_ip_reason_t;

const char *tw_ip_reason_text(tw_ip_reason_t reason);

typedef struct tw_ip_side {
    int is_plain;
    tw_quant_codec_t codec; /**< valid unless the calls stay plain */
} tw_ip_side_t;

typedef struct tw_ip_policy {
    tw_ip_side_t gathers; /**< for all-gathers */
    tw_ip_side_t sums;    /**< for reduce-scatters and all-reduces */
    size_t min_bytes;     /**< smallest whole tensor (all ranks' shards) that is quantized, in bytes */
    double report_sec;    /**< time between two reports; 0: report only at exit */
} tw_ip_policy_t;

/** Returns the policy that the environment's variables ask for, with what tw_ip_policy_set has changed. If a
 *  variable is invalid (logged), no call is quantized. Any thread. */
tw_ip_policy_t tw_ip_policy_get(void);
/** Does what tw_nccl_set_policy says. */
tw_status_t tw_ip_policy_set(const char *gathers, const char *sums);
/** Returns a hash of the settings that must be the same on all ranks. */
uint64_t tw_ip_policy_hash(void);
/** Write a text like "gathers int8, sums plain, from 1.00 MiB on" into buf. Returns buf. */
const char *tw_ip_policy_format(const tw_ip_policy_t *policy, char *buf, size_t buf_bytes);

/** Judge a call by its arguments. If it will be quantized, returns TW_IP_REPLACED and sets *codec. is_scaled
 *  is 1 if the call's operation is a PreMulSum whose scalar is known. */
tw_ip_reason_t tw_ip_policy_judge(const tw_ip_policy_t *policy, const tw_ip_call_t *call, int world,
                                  int is_scaled, tw_quant_codec_t *codec);

TW_C_END
