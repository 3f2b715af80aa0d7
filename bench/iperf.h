/** Measures one TCP stream between two nodes of a cluster in a box with iperf3 (Debian: iperf3). */
#pragma once

#include <stdio.h>

#include "core/core.h"

TW_C_BEGIN

/** On node 1: start a server for one client; it listens when this returns. NULL: iperf3 is not there. */
FILE *bench_iperf_serve(void);
/** Wait until the server has ended, which it does after its client. Accepts NULL. */
void bench_iperf_end(FILE *server);
/** On node 0: bits per second that node 1 received in two seconds; 0: not measured. */
double bench_iperf_run(void);

TW_C_END
