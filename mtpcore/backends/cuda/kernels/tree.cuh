/* Numbers of launch/trees.py: in the place of a node, and of what goes on. */
#define NO_NODE (-1)
#define PENDING (-2)
#define NOT_FINITE (-1)
