/** Products as they are meant: what tests hold cuBLASLt to, and what an emulated device multiplies by. */
#ifndef TW_TESTS_TRAINER_DEVICE_PLAIN_H
#define TW_TESTS_TRAINER_DEVICE_PLAIN_H

#include "trainer/device/products.h"

namespace tw
{

/** On memory that the processor reads: slow, every sum in the order of its terms. */
void product_plain(const tw_device_product_t *product);

} // namespace tw

#endif
