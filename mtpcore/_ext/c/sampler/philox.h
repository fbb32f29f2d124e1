/* Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random
 * numbers: as easy as 1, 2, 3" (SC 2011). Four counter words and two key words give four words;
 * there is no state, so any noise can be computed anywhere, in any order, any number of times. */
#ifndef MTPCORE_PHILOX_H
#define MTPCORE_PHILOX_H

#include <stdint.h>

#define MTP_PHILOX_ROUNDS 10
#define MTP_PHILOX_M0 0xD2511F53u
#define MTP_PHILOX_M1 0xCD9E8D57u
#define MTP_PHILOX_W0 0x9E3779B9u /* golden ratio */
#define MTP_PHILOX_W1 0xBB67AE85u /* sqrt(3) - 1 */

static inline void mtp_philox_round(uint32_t *a, uint32_t *b, uint32_t *c, uint32_t *d,
                                    uint32_t key0, uint32_t key1)
{
    const uint32_t high0 = (uint32_t)((uint64_t)MTP_PHILOX_M0 * *a >> 32);
    const uint32_t high1 = (uint32_t)((uint64_t)MTP_PHILOX_M1 * *c >> 32);
    const uint32_t low0 = MTP_PHILOX_M0 * *a, low1 = MTP_PHILOX_M1 * *c;
    *a = high1 ^ *b ^ key0;
    *b = low1;
    *c = high0 ^ *d ^ key1;
    *d = low0;
}

/* Replace the four counter words by four random words. */
static inline void mtp_philox(uint32_t counter[4], uint64_t key)
{
    uint32_t key0 = (uint32_t)key, key1 = (uint32_t)(key >> 32);
    for (int round = 0; round < MTP_PHILOX_ROUNDS; round++) {
        mtp_philox_round(&counter[0], &counter[1], &counter[2], &counter[3], key0, key1);
        key0 += MTP_PHILOX_W0;
        key1 += MTP_PHILOX_W1;
    }
}

#endif
