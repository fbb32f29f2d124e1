/* An index of a text: where tokens like the last ones stand in it.
 *
 * For a few orders, say the last 2, 4 and 8 tokens, the places at which the same tokens end are
 * chained, the latest first, as LZ77 chains places of equal bytes. A chain holds equal tokens only,
 * never those of an equal hash, so what is found does not depend on hashes. The table of a chain's
 * heads is open: the last token taken off leaves it as it was before this token came, since no
 * later key was placed around it. A suffix automaton finds the longest match in as many steps, but
 * counts no places and cannot be rolled back. */
#ifndef MTPCORE_TEXT_INDEX_H
#define MTPCORE_TEXT_INDEX_H

#include "lookup/match.h"

typedef struct {
    int32_t *tokens;
    int32_t
        *previous[MTP_MOST_ORDERS];  /* by place: the one before it with the same tokens, or -1 */
    int32_t *heads[MTP_MOST_ORDERS]; /* by slot: the latest place of its tokens, or -1 */
    int64_t n, capacity;             /* tokens; each table of heads has twice as many slots */
    int32_t orders[MTP_MOST_ORDERS]; /* ascending, from 1 */
    int32_t n_orders;
    uint64_t seed; /* of the hashes, so that nobody can write a text that makes them collide */
} mtp_text_index;

/* Let the index be of these tokens: roll back to where they differ from those it holds, and append
 * the rest. Returns 0, or -1 where there is no memory, and then it holds what it held. */
int mtp_text_index_follow(mtp_text_index *index, const int32_t *tokens, int64_t n);

/* Append n tokens. Returns 0, or -1 where there is no memory, and then it holds what it held. */
int mtp_text_index_append(mtp_text_index *index, const int32_t *tokens, int64_t n);

/* How many tokens its text and another begin with alike. */
int64_t mtp_text_index_shared(const mtp_text_index *index, const int32_t *tokens, int64_t n);

/* Let the index hold its first n tokens only. */
void mtp_text_index_roll_back(mtp_text_index *index, int64_t n);

void mtp_text_index_free(mtp_text_index *index);

/* Find the best place for the last of n tokens, which may be those of the index itself: of the
 * latest MTP_MOST_PLACES of the longest order that is found, the one with the longest match; of
 * several, that whose next token follows most places; then the latest. Matches count up to
 * `longest` tokens. Negative tokens follow nothing. */
mtp_text_match mtp_text_index_find(const mtp_text_index *index, const int32_t *tokens, int64_t n,
                                   int32_t longest);

#endif
