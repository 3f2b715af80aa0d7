/** The TW_COLL_... variables of the environment. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

#define TW_COLL_CHUNK_LEAST 256         /**< the least bytes that TW_COLL_CHUNK may be set to */
#define TW_COLL_MODEL_MEASURE "measure" /**< value of TW_COLL_MODEL: measure the model */

/** Options from the environment; tw_coll_config_table describes them. */
typedef struct tw_coll_options {
    size_t chunk_bytes; /**< 0: chosen by the library */
    int64_t window;
    int check;
    double timeout_sec;
    size_t scratch_bytes;
    char *model;
    int deterministic;
    int explain;
    int gpu_workspace; /**< tw_coll_gpu_workspace_t */
} tw_coll_options_t;

/** Where a communicator on GPU memory has its workspace over a transport: TW_COLL_GPU_WORKSPACE. */
typedef enum tw_coll_gpu_workspace {
    TW_COLL_GPU_WORKSPACE_AUTO,
    TW_COLL_GPU_WORKSPACE_PINNED,
    TW_COLL_GPU_WORKSPACE_DEVICE
} tw_coll_gpu_workspace_t;

/** Read the options. TW_ERR_CONFIG, logged with the variable. The caller frees them with tw_config_cleanup
 *  and tw_coll_config_table. */
tw_status_t tw_coll_options_read(tw_coll_options_t *options);

TW_C_END
