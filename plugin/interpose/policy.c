/** Reads the policy from the environment, and judges calls by it. */
#include "plugin/interpose/policy.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <xxhash.h>

#include "plugin/interpose/interpose.h"
#include "plugin/nccl/abi/types.h"
#include "plugin/nccl/interposer_options.h"

_Static_assert((int)ncclFloat16 == TW_NCCL_FLOAT16 && (int)ncclFloat32 == TW_NCCL_FLOAT32, "ncclDataType_t");

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tw_ip_policy_t current;

static tw_status_t parse_side(const char *text, tw_ip_side_t *side)
{
    tw_ip_side_t parsed = {.is_plain = tw_word_is(text, "plain")};
    tw_status_t status = parsed.is_plain ? TW_OK : tw_quant_codec_parse(text, &parsed.codec);
    if (status == TW_OK) {
        *side = parsed;
    }
    return status;
}

static tw_status_t read_environment(tw_ip_policy_t *policy)
{
    tw_ip_options_t options;
    TW_TRY(tw_ip_options_init(&options));
    policy->min_bytes = options.min_bytes;
    policy->report_sec = options.report_sec;
    tw_status_t status = parse_side(options.gathers, &policy->gathers);
    status = status == TW_OK ? parse_side(options.sums, &policy->sums) : status;
    tw_ip_options_cleanup(&options);
    return status;
}

static int is_set(const char *name)
{
    const char *value = getenv(name);
    return value && *value;
}

/** Warn of the PyTorch plugin's variables for weights and gradients: NCCL's calls do not say which is
 *  which. */
static void look_for_pytorchs_names(void)
{
    static const struct {
        const char *theirs, *ours;
    } names[] = {{"TW_WEIGHTS", "TW_INTERPOSE_GATHERS"}, {"TW_GRADS", "TW_INTERPOSE_SUMS"}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (is_set(names[i].theirs) && !is_set(names[i].ours)) {
            tw_warn("nccl: %s is for PyTorch's FSDP and DDP; the interposer reads %s", names[i].theirs,
                    names[i].ours);
        }
    }
}

static void policy_begin(void)
{
    tw_ip_policy_t policy = {.gathers.is_plain = 1, .sums.is_plain = 1};
    tw_config_check_names();
    look_for_pytorchs_names();
    if (read_environment(&policy) != TW_OK) {
        tw_error("nccl: nothing is quantized: one of TW_INTERPOSE_GATHERS, TW_INTERPOSE_SUMS, "
                 "TW_INTERPOSE_MIN_BYTES and TW_REPORT_SEC makes no sense");
        policy.gathers.is_plain = policy.sums.is_plain = 1;
    }
    current = policy;
}

tw_ip_policy_t tw_ip_policy_get(void)
{
    (void)pthread_once(&once, policy_begin);
    (void)pthread_mutex_lock(&lock);
    tw_ip_policy_t policy = current;
    (void)pthread_mutex_unlock(&lock);
    return policy;
}

tw_status_t tw_ip_policy_set(const char *gathers, const char *sums)
{
    tw_ip_policy_t policy = tw_ip_policy_get();
    tw_status_t status = gathers ? parse_side(gathers, &policy.gathers) : TW_OK;
    if (status == TW_OK && sums) {
        status = parse_side(sums, &policy.sums);
    }
    if (status == TW_OK) {
        (void)pthread_mutex_lock(&lock);
        current = policy;
        (void)pthread_mutex_unlock(&lock);
    }
    return status;
}

static const char *format_side(const tw_ip_side_t *side, char *buf, size_t buf_bytes)
{
    return side->is_plain ? "plain" : tw_quant_codec_format(&side->codec, buf, buf_bytes);
}

const char *tw_ip_policy_format(const tw_ip_policy_t *policy, char *buf, size_t buf_bytes)
{
    char gathers[64], sums[64], bytes[32];
    snprintf(buf, buf_bytes, "gathers %s, sums %s, from %s on",
             format_side(&policy->gathers, gathers, sizeof(gathers)),
             format_side(&policy->sums, sums, sizeof(sums)),
             tw_format_bytes(policy->min_bytes, bytes, sizeof(bytes)));
    return buf;
}

uint64_t tw_ip_policy_hash(void)
{
    tw_ip_policy_t policy = tw_ip_policy_get();
    char gathers[64], sums[64], text[192];
    int n = snprintf(text, sizeof(text), "%s %s %zu", format_side(&policy.gathers, gathers, sizeof(gathers)),
                     format_side(&policy.sums, sums, sizeof(sums)), policy.min_bytes);
    return XXH3_64bits(text, (size_t)n);
}

/* ---- one call ------------------------------------------------------------------------------------------ */

static const char *const texts[] = {
    [TW_IP_REPLACED] = "quantized",
    [TW_IP_PLAIN] = "TW_INTERPOSE_GATHERS or TW_INTERPOSE_SUMS says plain",
    [TW_IP_ASKED_PLAIN] = "the call itself asks for plain",
    [TW_IP_SMALL] = "smaller than TW_INTERPOSE_MIN_BYTES",
    [TW_IP_TYPE] = "neither bf16, fp16 nor fp32",
    [TW_IP_REDUCTION] = "neither a sum nor a mean",
    [TW_IP_SCALAR] = "its factor is not known here: in GPU memory, zero, or of another type",
    [TW_IP_NO_CODEC] = "all-to-all",
    [TW_IP_CAPTURED] = "captured into a graph",
    [TW_IP_ONE_NODE] = "inside one node",
    [TW_IP_ONE_PROCESS] = "several ranks in one process",
    [TW_IP_DIFFERENT] = "the ranks have different policies, or interposers",
    [TW_IP_ABSENT] = "not all ranks have the interposer",
    [TW_IP_GROWN] = "the communicator has grown: its ranks have no way to tell each other of the interposer",
    [TW_IP_ENDED] = "the communicator was revoked or aborted",
    [TW_IP_ARGUMENTS] = "arguments that NCCL refuses",
};
_Static_assert(sizeof(texts) / sizeof(texts[0]) == TW_IP_REASONS, "a text for each reason");

const char *tw_ip_reason_text(tw_ip_reason_t reason)
{
    return texts[reason];
}

static tw_ip_reason_t judge_reduction(const tw_ip_call_t *call, int is_scaled)
{
    if (call->kind == TW_IP_ALLGATHER || call->op == ncclSum || call->op == ncclAvg || is_scaled) {
        return TW_IP_REPLACED;
    }
    return (int)call->op < (int)ncclNumOps ? TW_IP_REDUCTION : TW_IP_SCALAR;
}

/** Compute the bytes of the whole tensor: all ranks' shards together. Returns 0 if they do not fit a size_t:
 *  the call is then left to NCCL, which refuses it. */
static int whole_bytes(const tw_ip_call_t *call, int world, size_t elem_bytes, size_t *bytes)
{
    size_t n = call->kind == TW_IP_ALLREDUCE ? 1 : (size_t)world;
    return !__builtin_mul_overflow(call->count, n * elem_bytes, bytes);
}

tw_ip_reason_t tw_ip_policy_judge(const tw_ip_policy_t *policy, const tw_ip_call_t *call, int world,
                                  int is_scaled, tw_quant_codec_t *codec)
{
    const tw_ip_side_t *side = call->kind == TW_IP_ALLGATHER ? &policy->gathers : &policy->sums;
    const tw_ip_option_t *asked = tw_ip_call_option(call, TW_NCCL_OPTION_PLAIN);
    size_t bytes;
    tw_type_t type;
    if (call->kind == TW_IP_ALLTOALL) {
        return TW_IP_NO_CODEC;
    }
    if (side->is_plain) {
        return TW_IP_PLAIN;
    }
    if (asked && asked->value.number != 0) {
        return TW_IP_ASKED_PLAIN;
    }
    if (!tw_nccl_type_get(call->type, &type)) {
        return TW_IP_TYPE;
    }
    if (!call->from || !call->to || !whole_bytes(call, world, tw_type_bytes(type), &bytes)) {
        return TW_IP_ARGUMENTS;
    }
    if (bytes < policy->min_bytes) {
        return TW_IP_SMALL;
    }
    *codec = side->codec;
    return judge_reduction(call, is_scaled);
}
