#include "core/core.h"

#include <pthread.h>

/** Read without a lock: it changes only in a child that has one thread. */
static unsigned n_forks;

static void count(void)
{
    n_forks++;
}

__attribute__((constructor)) static void watch(void)
{
    (void)pthread_atfork(NULL, NULL, count);
}

unsigned tw_fork_count(void)
{
    return n_forks;
}
