/** Measuring the cost model when a communicator is made. */
#ifndef TW_COLLECTIVES_MODEL_MEASURE_H
#define TW_COLLECTIVES_MODEL_MEASURE_H

#include "collectives/model/bootstrap.h"
#include "collectives/model/model.h"

TW_C_BEGIN

/** Measure links and processors, all members at once, in a few rounds, and agree on one model that a
 *  disturbed reading or member does not spoil (estimate.h says how). Collective; every member gets the same
 *  bytes from member 0. Takes about 0.1 s at 1 Gb/s: four rounds, and up to six while these have taken less
 *  than that. Errors of the transport; TW_ERR_TIMEOUT (logged) as in bootstrap.h. */
tw_status_t tw_coll_model_measure(tw_bootstrap_t *boot, tw_coll_model_t *model);

TW_C_END

#endif
