/* The kinds of operations of a plan: the one list of them. */
#ifndef MTPCORE_OPERATIONS_H
#define MTPCORE_OPERATIONS_H

/* X(NAME, name, sharing) for each kind: MTP_NAME is its constant, `name` what Python calls it, and
 * mtp_op_name the function that does it. How threads share its work where nobody says otherwise:
 *   ROWS    each has its own rows, and reads no others;
 *   GATHER  each has its own rows, but reads or writes rows of others;
 *   SPREAD  over all threads, for any number of rows. */
#define MTP_OPERATIONS(X)                                                                          \
    X(EMBED, embed, ROWS)                                                                          \
    X(EMBED_POSITIONS, embed_positions, ROWS)                                                      \
    X(EMBED_CODES, embed_codes, ROWS)                                                              \
    X(EMBED_IDS, embed_ids, ROWS)                                                                  \
    X(EMBEDDING_ROWS, embedding_rows, ROWS)                                                        \
    X(COPY, copy, ROWS)                                                                            \
    X(TAKE, take, GATHER)                                                                          \
    X(PREPARE, prepare, ROWS)                                                                      \
    X(MATMUL, matmul, SPREAD)                                                                      \
    X(RMS_NORM, rms_norm, ROWS)                                                                    \
    X(L2_NORM, l2_norm, ROWS)                                                                      \
    X(LAYER_NORM, layer_norm, ROWS)                                                                \
    X(ADD, add, ROWS)                                                                              \
    X(MUL, mul, ROWS)                                                                              \
    X(SCALE, scale, ROWS)                                                                          \
    X(CLAMP, clamp, ROWS)                                                                          \
    X(SCALE_BY, scale_by, ROWS)                                                                    \
    X(SHIFT_BY, shift_by, ROWS)                                                                    \
    X(MUL_HEADS, mul_heads, ROWS)                                                                  \
    X(SCALE_CHOSEN, scale_chosen, ROWS)                                                            \
    X(SCALE_BY_POSITION, scale_by_position, ROWS)                                                  \
    X(ACTIVATION, activation, ROWS)                                                                \
    X(XIELU, xielu, ROWS)                                                                          \
    X(GAUSSIAN_TOPK, gaussian_topk, ROWS)                                                          \
    X(GATED, gated, ROWS)                                                                          \
    X(ANGLES, angles, ROWS)                                                                        \
    X(ROPE, rope, ROWS)                                                                            \
    X(REMEMBER, remember, ROWS)                                                                    \
    X(ATTENTION, attention, SPREAD)                                                                \
    X(MERGE, merge, ROWS)                                                                          \
    X(CAUSAL_CONV, causal_conv, SPREAD)                                                            \
    X(BLOCK_MEAN, block_mean, SPREAD)                                                              \
    X(BLOCK_MIX, block_mix, SPREAD)                                                                \
    X(BLOCK_CONV, block_conv, SPREAD)                                                              \
    X(BLOCK_ATTENTION, block_attention, SPREAD)                                                    \
    X(BLOCK_WALK, block_walk, SPREAD)                                                              \
    X(KEEP_BEST, keep_best, ROWS)                                                                  \
    X(FIND_BEST, find_best, SPREAD)                                                                \
    X(DELTA_RULE, delta_rule, SPREAD)                                                              \
    X(ROUTE, route, ROWS)                                                                          \
    X(GROUP_IDS, group_ids, ROWS)                                                                  \
    X(GIVEN_IDS, given_ids, GATHER)                                                                \
    X(PAIR_IDS, pair_ids, ROWS)                                                                    \
    X(TOKEN_IDS, token_ids, ROWS)                                                                  \
    X(SORT_BY_EXPERT, sort_by_expert, GATHER)                                                      \
    X(SORT_BY_HEAD, sort_by_head, GATHER)                                                          \
    X(SORT_BY_POSITION, sort_by_position, GATHER)                                                  \
    X(PREPARE_BY_EXPERT, prepare_by_expert, GATHER)                                                \
    X(EXPERT_MATMUL, expert_matmul, SPREAD)                                                        \
    X(SCATTER, scatter, ROWS)                                                                      \
    X(MIX, mix, ROWS)                                                                              \
    X(ADD_CHOSEN, add_chosen, ROWS)

#define MTP_KIND_NUMBER(NAME, ...) MTP_##NAME,
typedef enum { MTP_OPERATIONS(MTP_KIND_NUMBER) MTP_KINDS } mtp_kind;
#undef MTP_KIND_NUMBER

#endif
