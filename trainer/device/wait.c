/* Waits for enqueued work, and records the first error. */
#include "trainer/device/state.h"

tw_status_t tw_device_wait_for(tw_device_model_t *m, tw_stream_t stream)
{
    TW_TRY(m->device->event_record(m->device, m->copied, stream));
    return m->device->event_wait(m->device, m->copied);
}

tw_status_t tw_device_wait_for_all(tw_device_model_t *m)
{
    TW_TRY(tw_device_wait_for(m, m->in));
    TW_TRY(tw_device_wait_for(m, m->compute));
    return tw_device_wait_for(m, m->out);
}

void tw_device_note(tw_device_model_t *m, tw_status_t status)
{
    if (m->status == TW_OK && status != TW_OK) {
        m->status = status;
        m->device->note_failure(m->device);
        (void)tw_device_wait_for(m, m->in); /* `in` and `compute` read memory that the caller may free next */
        (void)tw_device_wait_for(m, m->compute);
    }
}
