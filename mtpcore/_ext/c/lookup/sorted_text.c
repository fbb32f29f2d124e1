/* A text whose places are sorted; see sorted_text.h. */
#include "lookup/sorted_text.h"

enum { MOST_WALKED = 2 * MTP_MOST_PLACES };

typedef struct {
    const int32_t *tokens;
    int64_t n;
    int32_t longest;
} query;

/* How many tokens match at the i-th of the sorted places; -1 where there is no such place. */
static int32_t length_at(const mtp_sorted_text *text, int64_t i, const query *q)
{
    if (i < 0 || i >= text->n || text->places[i] < 0 || text->places[i] >= text->n)
        return -1;
    return mtp_match_length(text->tokens, text->places[i], q->tokens, q->n, q->longest);
}

/* Whether the i-th of the sorted places comes before the last tokens; what is shorter does. */
static int comes_before(const mtp_sorted_text *text, int64_t i, const query *q)
{
    const int32_t length = length_at(text, i, q);
    if (length < 0 || length == q->longest || length == q->n)
        return 0;
    const int64_t place = text->places[i];
    return length > place || text->tokens[place - length] < q->tokens[q->n - 1 - length];
}

mtp_text_match mtp_sorted_text_find(const mtp_sorted_text *text, const int32_t *tokens, int64_t n,
                                    const int32_t *orders, int32_t n_orders, int32_t longest)
{
    const query q = {tokens, n, longest};
    mtp_text_places found = {.n = 0};
    int64_t begin = 0, end = text->n;
    while (begin < end) {
        const int64_t middle = begin + (end - begin) / 2;
        if (comes_before(text, middle, &q))
            begin = middle + 1;
        else
            end = middle;
    }
    int64_t below = begin - 1, above = begin;
    int32_t least = orders[0];
    for (int32_t walked = 0; walked < MOST_WALKED && found.n < MTP_MOST_PLACES; walked++) {
        const int32_t low = length_at(text, below, &q), high = length_at(text, above, &q);
        const int32_t length = low > high ? low : high;
        if (length < least)
            break;
        const int64_t place = text->places[low > high ? below-- : above++];
        if (place + 1 == text->n || text->tokens[place + 1] < 0) /* nothing follows */
            continue;
        for (int32_t c = 0; !found.n && c < n_orders; c++)
            least = orders[c] <= length ? orders[c] : least;
        mtp_add_place(&found, text->tokens, place, length);
    }
    return mtp_best_place(&found);
}
