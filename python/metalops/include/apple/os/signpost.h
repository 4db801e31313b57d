// Signposts of Apple's Instruments, which does not exist here.
#pragma once
#include <os/log.h>

typedef uint64_t os_signpost_id_t;
typedef uint8_t os_signpost_type_t;
#define OS_SIGNPOST_ID_NULL ((os_signpost_id_t)0)
#define OS_SIGNPOST_ID_INVALID (~(os_signpost_id_t)0)
#define OS_SIGNPOST_ID_EXCLUSIVE ((os_signpost_id_t)0xEEEEB0B5B2B2EEEEull)
#define os_signpost_id_generate(LOG) OS_SIGNPOST_ID_EXCLUSIVE
#define os_signpost_interval_begin(LOG, ID, ...) ((void)0)
#define os_signpost_interval_end(LOG, ID, ...) ((void)0)
#define os_signpost_event_emit(LOG, ID, ...) ((void)0)
#define os_signpost_enabled(LOG) 0
