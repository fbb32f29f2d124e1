/* An index of a text; see text_index.h. */
#include <stdlib.h>
#include <string.h>

#include "lookup/text_index.h"

enum { LEAST_CAPACITY = 256, COMPARED = 1024 /* tokens at once */ };

static uint64_t hash_of(const mtp_text_index *index, const int32_t *first, int32_t order)
{
    uint64_t hash = index->seed;
    for (int32_t i = 0; i < order; i++) {
        hash = (hash ^ (uint32_t)first[i]) * UINT64_C(0x9E3779B97F4A7C15);
        hash ^= hash >> 32;
    }
    return hash;
}

/* The slot of the tokens from `first` on, or the one where they would be. */
static int32_t *slot_of(const mtp_text_index *index, int32_t chain, const int32_t *first)
{
    const int32_t order = index->orders[chain];
    const uint64_t mask = 2 * (uint64_t)index->capacity - 1;
    int32_t *const heads = index->heads[chain];
    for (uint64_t at = hash_of(index, first, order) & mask;; at = (at + 1) & mask) {
        const int32_t place = heads[at];
        if (place < 0 ||
            !memcmp(index->tokens + place + 1 - order, first, (size_t)order * sizeof(int32_t)))
            return &heads[at];
    }
}

static void chain_last(mtp_text_index *index)
{
    const int64_t place = index->n - 1;
    for (int32_t c = 0; c < index->n_orders && index->orders[c] <= index->n; c++) {
        int32_t *const head = slot_of(index, c, index->tokens + index->n - index->orders[c]);
        index->previous[c][place] = *head;
        *head = (int32_t)place;
    }
}

static void unchain_last(mtp_text_index *index)
{
    const int64_t place = index->n - 1;
    for (int32_t c = 0; c < index->n_orders && index->orders[c] <= index->n; c++)
        *slot_of(index, c, index->tokens + index->n - index->orders[c]) = index->previous[c][place];
}

/* Chain the first n tokens, which are there, anew. */
static void rebuild(mtp_text_index *index, int64_t n)
{
    for (int32_t c = 0; c < index->n_orders; c++)
        memset(index->heads[c], 0xFF, 2 * (size_t)index->capacity * sizeof(int32_t));
    for (index->n = 1; index->n <= n; index->n++)
        chain_last(index);
    index->n = n;
}

static int reserve(mtp_text_index *index, int64_t n)
{
    mtp_text_index grown = *index;
    if (n <= index->capacity)
        return 0;
    grown.capacity = index->capacity ? index->capacity : LEAST_CAPACITY;
    while (grown.capacity < n)
        grown.capacity *= 2;
    const size_t n_bytes = (size_t)grown.capacity * sizeof(int32_t);
    int is_whole = (grown.tokens = malloc(n_bytes)) != NULL;
    for (int32_t c = 0; c < index->n_orders; c++) {
        is_whole &= (grown.previous[c] = malloc(n_bytes)) != NULL;
        is_whole &= (grown.heads[c] = malloc(2 * n_bytes)) != NULL;
    }
    if (!is_whole) {
        mtp_text_index_free(&grown);
        return -1;
    }
    if (index->n)
        memcpy(grown.tokens, index->tokens, (size_t)index->n * sizeof(int32_t));
    rebuild(&grown, index->n);
    mtp_text_index_free(index);
    *index = grown;
    return 0;
}

int64_t mtp_text_index_shared(const mtp_text_index *index, const int32_t *tokens, int64_t n)
{
    const int32_t *const text = index->tokens;
    const int64_t most = n < index->n ? n : index->n;
    int64_t i = 0;
    while (i + COMPARED <= most && !memcmp(text + i, tokens + i, COMPARED * sizeof(int32_t)))
        i += COMPARED;
    while (i < most && text[i] == tokens[i])
        i++;
    return i;
}

int mtp_text_index_append(mtp_text_index *index, const int32_t *tokens, int64_t n)
{
    if (reserve(index, index->n + n))
        return -1;
    for (int64_t i = 0; i < n; i++) {
        index->tokens[index->n++] = tokens[i];
        chain_last(index);
    }
    return 0;
}

int mtp_text_index_follow(mtp_text_index *index, const int32_t *tokens, int64_t n)
{
    if (reserve(index, n))
        return -1;
    const int64_t kept = mtp_text_index_shared(index, tokens, n);
    mtp_text_index_roll_back(index, kept);
    return mtp_text_index_append(index, tokens + kept, n - kept);
}

void mtp_text_index_roll_back(mtp_text_index *index, int64_t n)
{
    if (n < index->n / 2) { /* less to keep than to take off */
        rebuild(index, n);
        return;
    }
    for (; index->n > n; index->n--)
        unchain_last(index);
}

void mtp_text_index_free(mtp_text_index *index)
{
    free(index->tokens);
    for (int32_t c = 0; c < index->n_orders; c++) {
        free(index->previous[c]);
        free(index->heads[c]);
    }
}

mtp_text_match mtp_text_index_find(const mtp_text_index *index, const int32_t *tokens, int64_t n,
                                   int32_t longest)
{
    const int32_t *const text = index->tokens;
    mtp_text_places found = {.n = 0};
    int32_t c = index->n ? index->n_orders : 0; /* without tokens there are no tables */
    while (!found.n && c-- > 0) {
        if (index->orders[c] > n)
            continue;
        int64_t place = *slot_of(index, c, tokens + n - index->orders[c]);
        if (place == index->n - 1) /* nothing follows */
            place = index->previous[c][place];
        for (int32_t i = 0; i < MTP_MOST_PLACES && place >= 0; i++) {
            if (text[place + 1] >= 0)
                mtp_add_place(&found, text, place,
                              mtp_match_length(text, place, tokens, n, longest));
            place = index->previous[c][place];
        }
    }
    return mtp_best_place(&found);
}
