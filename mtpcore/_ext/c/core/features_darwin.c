#include "core/features.h"

#include <stddef.h>
#include <sys/sysctl.h>

static int has_feature(const char *name)
{
    int has = 0;
    size_t size = sizeof has;
    return sysctlbyname(name, &has, &size, NULL, 0) == 0 && has;
}

/* No Mac has them. */
int mtp_may_use_tiles(void) { return 0; }

int mtp_has_dot_products(void) { return has_feature("hw.optional.arm.FEAT_DotProd"); }

int mtp_has_matrix_products(void) { return has_feature("hw.optional.arm.FEAT_I8MM"); }
