/** The interposer's variables. The net plugin, too, reads them: it may have to open the interposer. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

typedef struct tw_ip_options {
    char *gathers, *sums; /**< "plain", or a codec */
    size_t min_bytes;
    double report_sec, join_sec;
    int redirects; /**< 1: the net plugin redirects the job's calls */
} tw_ip_options_t;

/** Read the environment's; see tw_config_init. */
tw_status_t tw_ip_options_init(tw_ip_options_t *options);
void tw_ip_options_cleanup(tw_ip_options_t *options);

TW_C_END
