#ifndef MTPCORE_DRAFT_CUH
#define MTPCORE_DRAFT_CUH

/* What became of a chosen token; DRAFT of launch/passes.py. */
struct Draft {
    int token; /* -1: none */
    int next;  /* what a later pass reads as its token: 0 where it cannot be read */
    int goes_on;
};

#endif
