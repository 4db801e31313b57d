// The size of pages on Macs with Apple's GPUs.
#pragma once
#include <stdint.h>

static const uintptr_t vm_page_size = 16384;
