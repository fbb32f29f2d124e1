/* A draft of a tree; NODE of launch/trees.py. */
struct Node {
    double worth; /* the product of the shares on the way to it */
    int parent;   /* the draft before it; below 0: none, or not found yet */
    int kept;     /* the kept row of the output that chose it */
    int best_of;  /* the candidate that it is, or itself */
};
