#ifndef MTPCORE_DRAFT_CUH
#define MTPCORE_DRAFT_CUH

/* What became of a draft; DRAFT of launch/passes.py. */
struct Draft {
    int token;   /* -1: none */
    int is_open; /* whether its stage could choose it */
};

#endif
