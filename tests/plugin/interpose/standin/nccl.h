/** What the stand-in tells of itself, besides NCCL's own calls: a libnccl.so.2 of host memory and threads.
 *  Ranks are processes that find each other in the folder STANDIN_DIR. */
#ifndef TW_TESTS_PLUGIN_INTERPOSE_STANDIN_NCCL_H
#define TW_TESTS_PLUGIN_INTERPOSE_STANDIN_NCCL_H

#include <cstdint>

struct ncclComm;

extern "C" {
/** How often one of NCCL's functions was called in this process, by its name. */
int standin_calls(const char *name);
/** Payload that a communicator has sent to a rank. */
uint64_t standin_sent_bytes(ncclComm *comm, int peer);
/** The next call of this function does nothing but return the result; "": none. */
void standin_fail_next(const char *name, int result);
/** In the next call of this function, on its thread, before it does anything: hook(arg). */
void standin_hook_next(const char *name, void (*hook)(void *arg), void *arg);
/** From now on CLOCK_MONOTONIC is so much later, for all in this process. */
void standin_clock_jump(int sec);
}

#endif
