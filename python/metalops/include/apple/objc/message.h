// Messages sent by C and C++: a caller casts the function to the type of the method.
#pragma once
#include <objc/objc.h>

struct objc_super {
  id receiver;
  Class super_class;
};
// clang knows them by their old types.
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wincompatible-library-redeclaration"
OBJC_EXTERN void objc_msgSend(void);
OBJC_EXTERN void objc_msgSend_stret(void);
OBJC_EXTERN void objc_msgSend_fpret(void);
#pragma clang diagnostic pop
