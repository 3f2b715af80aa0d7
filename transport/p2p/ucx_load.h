/** UCX, loaded when first needed. A process that only uses Thinwire's TCP connections never loads it. */
#pragma once

#include <ucp/api/ucp.h>
#include <uct/api/uct.h>

#include "core/core.h"

TW_C_BEGIN

/** The functions of UCX that this folder calls. */
#define TW_UCX_FUNCTIONS(FUNCTION)           \
    FUNCTION(ucp_am_recv_data_nbx)           \
    FUNCTION(ucp_am_send_nbx)                \
    FUNCTION(ucp_cleanup)                    \
    FUNCTION(ucp_config_modify)              \
    FUNCTION(ucp_config_read)                \
    FUNCTION(ucp_config_release)             \
    FUNCTION(ucp_context_query)              \
    FUNCTION(ucp_ep_close_nbx)               \
    FUNCTION(ucp_ep_create)                  \
    FUNCTION(ucp_get_version)                \
    FUNCTION(ucp_init_version)               \
    FUNCTION(ucp_request_check_status)       \
    FUNCTION(ucp_request_free)               \
    FUNCTION(ucp_worker_arm)                 \
    FUNCTION(ucp_worker_create)              \
    FUNCTION(ucp_worker_destroy)             \
    FUNCTION(ucp_worker_flush_nbx)           \
    FUNCTION(ucp_worker_get_address)         \
    FUNCTION(ucp_worker_get_efd)             \
    FUNCTION(ucp_worker_progress)            \
    FUNCTION(ucp_worker_release_address)     \
    FUNCTION(ucp_worker_set_am_recv_handler) \
    FUNCTION(ucs_status_string)              \
    FUNCTION(uct_component_query)            \
    FUNCTION(uct_query_components)           \
    FUNCTION(uct_release_component_list)

typedef struct tw_ucx {
#define TW_UCX_MEMBER(name) __typeof__(&(name)) name;
    TW_UCX_FUNCTIONS(TW_UCX_MEMBER)
#undef TW_UCX_MEMBER
} tw_ucx_t;

/** Load UCX until the process ends. Returns NULL on failure; the next call tries again. Any thread. */
const tw_ucx_t *tw_ucx_load(void);
/** Return why UCX could not be loaded: "libucp.so.0: cannot open shared object file: ...". */
const char *tw_ucx_why_not(void);
/** UCX's functions, for code that has UCX objects; valid after tw_ucx_load has succeeded. */
extern const tw_ucx_t *tw_ucx;

TW_C_END
