/** Measuring the processor: what copying, adding and the codecs cost per byte. */
#ifndef TW_COLLECTIVES_MODEL_PROCESSOR_H
#define TW_COLLECTIVES_MODEL_PROCESSOR_H

#include "collectives/model/sample.h"

TW_C_BEGIN

/** One reading of copying, adding and every codec, on the calling thread. TW_ERR_NO_MEMORY (logged). */
tw_status_t tw_measure_processor(tw_cpu_sample_t *out);

/** Processor time of the calling thread. */
double tw_measure_thread_sec(void);

void tw_measure_host_init(tw_measure_host_t *out);

TW_C_END

#endif
