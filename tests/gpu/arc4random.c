/** What the C++ library that is linked in calls for random_device, and glibc has only since 2.36: with it
 *  here the programs run where glibc is 2.35 (Ubuntu 22.04). */
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

uint32_t arc4random(void)
{
    uint32_t value;

    if (getrandom(&value, sizeof(value), 0) != (ssize_t)sizeof(value)) {
        abort();
    }
    return value;
}
