#include "core/core.h"

#include <pthread.h>

/** It needs no lock: it changes only in a new child, which has one thread. */
static unsigned n_forks;

static void fork_count_one(void)
{
    n_forks++;
}

__attribute__((constructor)) static void watch(void)
{
    (void)pthread_atfork(NULL, NULL, fork_count_one);
}

unsigned tw_fork_count(void)
{
    return n_forks;
}
