/** Measures one TCP stream between two nodes of a cluster in a box with iperf3 (Debian: iperf3). */
#pragma once

#include <stdio.h>

#include "core/core.h"

TW_C_BEGIN

/** On node 1: start a server for one client, and wait until it listens, or has ended because iperf3 is
 *  missing. Returns NULL if no process can be started. */
FILE *bench_iperf_serve(void);
/** Wait until the server has ended; it ends after its client. Accepts NULL. */
void bench_iperf_end(FILE *server);
/** On node 0: run the client for 2 s. Returns the bit/s that node 1 received; 0 if that failed. */
double bench_iperf_run(void);

TW_C_END
