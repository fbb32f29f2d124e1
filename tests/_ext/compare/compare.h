/* Compares what the instruction sets of the machine compute with what portable C computes. */
#ifndef MTPCORE_TESTS_COMPARE_H
#define MTPCORE_TESTS_COMPARE_H

#include <stddef.h>
#include <stdint.h>

/* Writes all its results, the same bytes whatever instruction set is in use. */
typedef void compute(const void *of, void *results);

/* Whether the sign and the payload of a NaN count: those of sums of blocks do, others do not. */
enum { EVERY_BIT, ONE_NAN };

/* Let every set of the machine compute n bytes; report those that differ from portable C. */
void compare(const char *what, compute *f, const void *of, size_t n_bytes, int nans);

/* Report a value of which something is wrong. */
void check(const char *what, double of, int is_right);

uint32_t random_word(void);
float random_float(void); /* in (-1, 1), now and then much larger */
float random_bits(void);  /* any float: infinities, NaNs and subnormal numbers, too */

enum { LINE = 64, ANYWHERE = 1 };

/* Memory whose end, and so its beginning, is aligned; right behind it is a page that ends the program
 * when it is touched. So does a lack of memory. */
void *zeros(size_t n_bytes, int alignment);
void release(void *memory);

void check_memory(void);
void check_threads(void);
void compare_matmuls(void);
void compare_choices(void);
void compare_encoded(void);
void compare_functions(void);
void compare_operations(void);
void compare_recurrent(void);

#endif
