// Messages sent by C and C++: a caller casts the function to the type of the method.
#pragma once
#include <objc/objc.h>

struct objc_super {
  id receiver;
  Class super_class;
};
OBJC_EXTERN void objc_msgSend(void);
OBJC_EXTERN void objc_msgSend_stret(void);
OBJC_EXTERN void objc_msgSend_fpret(void);
