/** Inside a rank of the campaign's job. */
#pragma once

#include "collectives/collectives.h"
#include "tests/faults/faults.h"

TW_C_BEGIN

/** Run operation `index`, which goes round the TW_FAULTS_OPS kinds, and add to *n_wrong the elements of its
 *  result that are not as expected. */
tw_status_t tw_fault_operate(tw_coll_t *coll, int index, uint64_t *n_wrong);

/** Remember which ranks the log's error lines name, as bits, until the program ends; the lines go to stderr.
 *  It serves failures that come before there is a transport to ask. */
void tw_fault_names_listen(uint64_t *named);
/** The ranks that a line of the log names as failed; silent. */
uint64_t tw_fault_names_parse(const char *line);

TW_C_END
