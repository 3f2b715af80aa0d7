/** A job without its program: job SCENARIO, the rest from the environment (job.cc). Returns the exit
 *  status. */
#ifndef TW_TESTS_PLUGIN_INTERPOSE_RUN_H
#define TW_TESTS_PLUGIN_INTERPOSE_RUN_H

namespace job
{
int run(int argc, char **argv);
}

#endif
