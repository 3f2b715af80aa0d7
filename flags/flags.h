/** Thinwire flags: what the programs' command lines share, on top of argp. A wrong value ends the program with a message that names the flag. */
#ifndef TW_FLAGS_FLAGS_H
#define TW_FLAGS_FLAGS_H

#include <argp.h>
#include <stddef.h>
#include <stdint.h>

#include "core/core.h"

TW_C_BEGIN

/** argp_parse with exit code 2 for what is wrong. Then goes to the folder that the user is in, which paths are meant from:
 *  `bazel run` starts programs elsewhere. flags: of argp_parse. */
void tw_flags_parse(const struct argp *argp, int argc, char **argv, unsigned flags, void *options);

/** The value of --flag: a whole number, a number, a size (64K) from min to max. */
int64_t tw_flag_int(struct argp_state *state, const char *flag, const char *text, int64_t min, int64_t max);
double tw_flag_number(struct argp_state *state, const char *flag, const char *text, double min, double max);
size_t tw_flag_bytes(struct argp_state *state, const char *flag, const char *text, size_t min, size_t max);
/** A number of things from 1 to max: 1000, 500K, 1M, 7.5G, 124e6. */
double tw_flag_count(struct argp_state *state, const char *flag, const char *text, double max);
/** A link's rate in bit/s: 100mbit; 0: none. */
double tw_flag_link(struct argp_state *state, const char *flag, const char *text);
/** Calls add(state, state->input, item) for each item of a comma-separated list; what is longer than 127 characters is cut. */
void tw_flag_list(struct argp_state *state, const char *list,
                  void (*add)(struct argp_state *state, void *options, const char *item));

TW_C_END

#endif
