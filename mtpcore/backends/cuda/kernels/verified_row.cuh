/* A row, and where its sequence is; VERIFIED_ROW of launch/trees.py. */
struct VerifiedRow {
    int row, root;      /* root: of the pending token */
    int first, n;       /* the chosen nodes of its sequence; its own is that of its row */
    int chooser, above; /* above: who chooses behind the pending token; -1: nobody */
    int text;
};
