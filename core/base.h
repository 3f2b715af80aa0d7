/** What every header needs: status codes, element types, kinds of memory, sizes. Part of core/core.h. */
#ifndef TW_CORE_BASE_H
#define TW_CORE_BASE_H

#include <stddef.h>
#include <stdint.h>

/** These stand around the declarations of every header, so that C++ links them as C functions. */
#ifdef __cplusplus
#define TW_C_BEGIN extern "C" {
#define TW_C_END }
#else
#define TW_C_BEGIN
#define TW_C_END
#endif

TW_C_BEGIN

/* ---- status -------------------------------------------------------------------------------------------- */

/** The one list of status codes: X(name, value, text). 0 is success, 1 is "in progress", negatives are
 *  failures. */
#define TW_STATUS_LIST(X)                                         \
    X(TW_OK, 0, "success")                                        \
    X(TW_IN_PROGRESS, 1, "operation in progress")                 \
    X(TW_ERR_INVALID, -1, "invalid argument")                     \
    X(TW_ERR_NO_MEMORY, -2, "out of memory")                      \
    X(TW_ERR_UNSUPPORTED, -3, "not supported")                    \
    X(TW_ERR_CONFIG, -4, "bad configuration value")               \
    X(TW_ERR_NOT_FOUND, -5, "not found")                          \
    X(TW_ERR_IO, -6, "system or I/O error")                       \
    X(TW_ERR_FORMAT, -7, "malformed input")                       \
    X(TW_ERR_TRUNCATED, -8, "message or file truncated")          \
    X(TW_ERR_AUTH, -9, "peer failed to authenticate")             \
    X(TW_ERR_TIMEOUT, -10, "timed out")                           \
    X(TW_ERR_PEER, -11, "peer failed or unreachable")             \
    X(TW_ERR_CANCELED, -12, "operation canceled")                 \
    X(TW_ERR_MISMATCH, -13, "ranks disagree about the operation") \
    X(TW_ERR_STALE, -14, "stale version")                         \
    X(TW_ERR_UCX, -15, "UCX error")                               \
    X(TW_ERR_CUDA, -16, "CUDA error")                             \
    X(TW_ERR_NCCL, -17, "NCCL error")                             \
    X(TW_ERR_INTERNAL, -18, "internal error")

typedef enum tw_status {
#define TW_STATUS_ENUM(name, value, text) name = value,
    TW_STATUS_LIST(TW_STATUS_ENUM)
#undef TW_STATUS_ENUM
} tw_status_t;

/** English text of a status; "unknown status" for a value not in the list. Never NULL; static storage. */
const char *tw_status_string(tw_status_t status);

/** Translate an errno value; the caller logs the errno. ENOMEM -> NO_MEMORY, ETIMEDOUT -> TIMEOUT,
 *  EINVAL -> INVALID, ENOENT -> NOT_FOUND, everything else -> IO. */
tw_status_t tw_status_from_errno(int error);

/** Return a call's status from the calling function unless it is TW_OK. For places with nothing to undo. */
#define TW_TRY(call)                 \
    do {                             \
        tw_status_t tried_ = (call); \
        if (tried_ != TW_OK) {       \
            return tried_;           \
        }                            \
    } while (0)

/* ---- element types ------------------------------------------------------------------------------------- */

typedef enum tw_type {
    TW_TYPE_FP32 = 0,
    TW_TYPE_BF16 = 1,
    TW_TYPE_FP16 = 2,
    TW_TYPE_BYTE = 3, /**< opaque bytes: may be moved, never reduced or quantized */
} tw_type_t;

/** Bytes of one element; 0 for an unknown type. */
size_t tw_type_bytes(tw_type_t type);

/** "fp32", "bf16", "fp16", "byte"; "?" for an unknown type. */
const char *tw_type_name(tw_type_t type);

/** Parse a name (as above, also "float32", "bfloat16", "float16", "half", "f32"). TW_ERR_INVALID if
 *  unknown. */
tw_status_t tw_type_parse(const char *name, tw_type_t *type);

/** Where memory lives. */
typedef enum tw_mem { TW_MEM_HOST = 0, TW_MEM_CUDA = 1 } tw_mem_t;

/** A CUDA stream, or NULL for the default stream and for host memory. */
typedef void *tw_stream_t;

/* ---- sizes --------------------------------------------------------------------------------------------- */

/** The most bytes that a caller's size may name. No machine has so much memory, so a larger size is a
 *  mistake and is refused. With sizes up to this, sums over thousands of ranks, with a few bytes more for
 *  each, fit a size_t. */
#define TW_MEMORY_BYTES_MAX ((size_t)1 << 48)

/** The larger of two numbers. Evaluates both arguments, and the larger one twice. */
#define TW_LARGER(a, b) ((a) > (b) ? (a) : (b))

/** Returns a + b, or SIZE_MAX if the sum does not fit or if a or b is SIZE_MAX. So a chain of sums and
 *  products of callers' sizes needs only one comparison with a limit, at its end. */
static inline size_t tw_size_add(size_t a, size_t b)
{
    return a > SIZE_MAX - b ? SIZE_MAX : a + b;
}
/** Returns a * b, 0 if either is 0, or SIZE_MAX if the product does not fit or if a or b is SIZE_MAX. */
static inline size_t tw_size_mul(size_t a, size_t b)
{
    return b != 0 && a > SIZE_MAX / b ? SIZE_MAX : a * b;
}

TW_C_END

#endif
