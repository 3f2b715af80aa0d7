/** The interposer's variables. The net plugin also reads them: TW_INTERPOSE makes it open the interposer. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

typedef struct tw_ip_options {
    char *gathers, *sums; /**< "plain", or a codec */
    size_t min_bytes;
    double report_sec, join_sec;
    int redirects; /**< TW_INTERPOSE; 1: the net plugin opens the interposer */
} tw_ip_options_t;

/** Read the variables from the environment. Errors as tw_config_init. */
tw_status_t tw_ip_options_init(tw_ip_options_t *options);
void tw_ip_options_cleanup(tw_ip_options_t *options);

TW_C_END
