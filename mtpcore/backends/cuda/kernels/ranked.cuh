#define MOST_RANKS 64

/* A token of a ranking; RANKED of launch/trees.py. */
struct Ranked {
    double share;
    float probability;
    int token; /* -1: none */
};
