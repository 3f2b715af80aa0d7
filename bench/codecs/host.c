/* Times operations of block codecs beside memcpy, in one thread. */
#include <string.h>

#include "bench/codecs/rig.h"

#define MIN_SAMPLES 5
#define MAX_SAMPLES 2000

static tw_status_t host_copy_in(void *dst, const void *src, size_t bytes)
{
    memcpy(dst, src, bytes);
    return TW_OK;
}

/** Copy half of the operation's bytes, so that the copy reads and writes as many bytes as the operation. */
static void host_copy(const cb_rig_t *rig, uint8_t *to)
{
    memcpy(to, rig->arena, (size_t)rig->at.moved / 2);
    __asm__ volatile("" ::: "memory"); /* keeps the compiler from leaving a copy out */
}

/** Time the copy and the operation in turns, so that other load on the machine slows both equally. */
static tw_status_t host_sample(cb_rig_t *rig, size_t repeats, uint8_t *to, cb_result_t *result)
{
    double ops[MAX_SAMPLES], copies[MAX_SAMPLES], start = tw_time_sec();
    tw_status_t status = cb_rig_run(rig, 0);
    size_t n = 0;
    while (status == TW_OK && n < MAX_SAMPLES &&
           (n < MIN_SAMPLES || tw_time_sec() - start < rig->c->seconds)) {
        double begin = tw_thread_sec();
        for (size_t i = 0; i < repeats; i++) {
            host_copy(rig, to);
        }
        double between = tw_thread_sec();
        for (size_t i = 0; i < repeats && status == TW_OK; i++) {
            status = cb_rig_run(rig, 0);
        }
        copies[n] = (between - begin) / (double)repeats;
        ops[n++] = (tw_thread_sec() - between) / (double)repeats;
    }
    *result = (cb_result_t){rig->at.moved, tw_median(ops, n), tw_median(copies, n)};
    return status;
}

tw_status_t cb_host_measure(const cb_case_t *c, size_t repeats, const char **backend, cb_result_t *result)
{
    const cb_memory_t memory = {.mem = TW_MEM_HOST, .backend = *backend, .copy = host_copy_in};
    cb_rig_t rig;
    uint8_t *to = NULL;
    tw_status_t status = cb_rig_init(&rig, c, &memory);
    if (status == TW_OK) {
        *backend = tw_quant_backend_name(rig.in);
        rig.n_sets = 1;
        rig.arena = tw_buffer_alloc_zero(rig.at.bytes);
        to = tw_buffer_alloc_zero((size_t)rig.at.moved / 2);
        status = rig.arena && to ? cb_rig_fill(&rig) : TW_ERR_NO_MEMORY;
    }
    if (status == TW_OK) {
        status = host_sample(&rig, repeats, to, result);
    } else if (status == TW_ERR_NO_MEMORY) {
        tw_error("bench: no memory for %zu elements", c->n_elems);
    }
    tw_buffer_free(to);
    tw_buffer_free(rig.arena);
    cb_rig_cleanup(&rig);
    return status;
}
