/* What a lookup finds, and which of several places it takes. */
#ifndef MTPCORE_LOOKUP_MATCH_H
#define MTPCORE_LOOKUP_MATCH_H

#include <stdint.h>

enum { MTP_MOST_ORDERS = 4, MTP_MOST_PLACES = 64 };

/* What stands after the best place for some last tokens. */
typedef struct {
    int64_t begin;  /* of what follows the match; 0: nothing was found */
    int32_t length; /* of the match: tokens that are the same, up to the longest that is counted */
    int32_t places; /* of the longest order that is found, with something after them */
    int32_t agreeing; /* those of them that go on with the same token */
} mtp_text_match;

/* Places of the last tokens, with something after them. */
typedef struct {
    int64_t begins[MTP_MOST_PLACES]; /* of what follows */
    int32_t next[MTP_MOST_PLACES];   /* the first token of that */
    int32_t lengths[MTP_MOST_PLACES];
    int32_t n;
} mtp_text_places;

/* How many of the tokens up to a place are the last of n others, up to `longest`. */
static inline int32_t mtp_match_length(const int32_t *text, int64_t place, const int32_t *tokens,
                                       int64_t n, int32_t longest)
{
    int32_t length = 0;
    while (length < longest && length < n && length <= place &&
           text[place - length] == tokens[n - 1 - length])
        length++;
    return length;
}

static inline void mtp_add_place(mtp_text_places *places, const int32_t *text, int64_t place,
                                 int32_t length)
{
    places->begins[places->n] = place + 1;
    places->next[places->n] = text[place + 1];
    places->lengths[places->n++] = length;
}

/* The longest match; of several, that whose next token follows most places; then the latest. */
static inline mtp_text_match mtp_best_place(const mtp_text_places *places)
{
    mtp_text_match best = {0, 0, 0, 0};
    for (int32_t i = 0; i < places->n; i++) {
        if (places->lengths[i] < best.length)
            continue;
        int32_t agreeing = 0;
        for (int32_t j = 0; j < places->n; j++)
            agreeing += places->next[j] == places->next[i];
        if (places->lengths[i] > best.length || agreeing > best.agreeing ||
            (agreeing == best.agreeing && places->begins[i] > best.begin))
            best = (mtp_text_match){places->begins[i], places->lengths[i], places->n, agreeing};
    }
    return best;
}

#endif
