/** The cost model as text: what TW_COLL_MODEL holds. */
#ifndef TW_COLLECTIVES_MODEL_TEXT_H
#define TW_COLLECTIVES_MODEL_TEXT_H

#include "collectives/model/model.h"

TW_C_BEGIN

/** A machine with 1 Gb/s Ethernet between nodes: what a text that leaves something out begins with. */
void tw_coll_model_default(tw_coll_model_t *model);
/** Read a text onto the defaults: sections separated by ';', "name:key=value,key=value". Sections and keys:
 *    inter, node     alpha=50us  beta=1gbit (bits/s)  message=2us  turn=100us  busy=0.2  noise=0.1
 *    cpu             copy=8G  reduce=4G (bytes/s)  noise=0.1
 *    codec           encode=4G  decode=4G (bytes/s of plain data, every codec)
 *    int8, int4      the same for one of them; 0: as codec
 *    lossless        the same, and encode_message=30us  decode_message=15us (a message, beyond its bytes)
 *  TW_ERR_CONFIG, logged with the nearest known name; the model stays then. */
tw_status_t tw_coll_model_parse(const char *text, tw_coll_model_t *model);
#define TW_COLL_MODEL_TEXT_BYTES 512
/** The inverse, into `buf` (TW_COLL_MODEL_TEXT_BYTES are enough); returns buf. */
const char *tw_coll_model_format(const tw_coll_model_t *model, char *buf, size_t buf_bytes);

TW_C_END

#endif
