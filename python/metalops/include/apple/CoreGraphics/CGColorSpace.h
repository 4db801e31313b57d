// A colour space, which headers of others name: there is none.
#pragma once

typedef struct CGColorSpace* CGColorSpaceRef;
