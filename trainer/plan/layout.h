/** Private to trainer/plan: the layout of tensors over ranks, for memory, bytes and time. */
#pragma once

#include "trainer/plan/plan.h"

TW_C_BEGIN

/** Lay the model's tensors out over the cluster's ranks. TW_ERR_NO_MEMORY. */
tw_status_t tw_plan_layout(const tw_model_t *model, const tw_plan_cluster_t *cluster, tw_hpz_layout_t **out);

TW_C_END
