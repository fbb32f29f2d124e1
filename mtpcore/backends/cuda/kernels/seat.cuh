/* A row, and where its sequence is; SEAT of launch/trees.py. */
struct Seat {
    int row, root;      /* root: of the pending token */
    int first, n;       /* the chosen nodes of its sequence; its own is that of its row */
    int chooser, above; /* above: who chooses behind the pending token; -1: nobody */
    int text;
};
