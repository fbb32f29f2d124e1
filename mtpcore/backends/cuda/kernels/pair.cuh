/* A row, and the row that it becomes; PAIR of launch/passes.py. */
struct Pair {
    int from, to;
};
