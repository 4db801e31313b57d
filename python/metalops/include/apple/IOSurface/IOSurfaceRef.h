// Pixels that processes share, which headers of others name: there are none.
#pragma once

typedef struct __IOSurface* IOSurfaceRef;
