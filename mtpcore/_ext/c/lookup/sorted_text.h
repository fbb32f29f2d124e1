/* A text whose places are sorted by the tokens that end there, read backwards: one binary search
 * finds the longest match of some last tokens, and its neighbours are the next longest. */
#ifndef MTPCORE_SORTED_TEXT_H
#define MTPCORE_SORTED_TEXT_H

#include "lookup/match.h"

/* Arrays of a file, which may hold anything: whatever they do, nothing outside of them is read. */
typedef struct {
    const int32_t *tokens;
    const int32_t *places; /* sorted; where they are not, less is found */
    int64_t n;             /* of both */
} mtp_sorted_text;

/* As mtp_text_index_find, of the MTP_MOST_PLACES with the longest matches. */
mtp_text_match mtp_sorted_text_find(const mtp_sorted_text *text, const int32_t *tokens, int64_t n,
                                    const int32_t *orders, int32_t n_orders, int32_t longest);

#endif
