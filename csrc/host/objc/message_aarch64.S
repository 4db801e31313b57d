// objc_msgSend for 64-bit ARM; see message_x86_64.S. A struct that is returned in memory has its
// address in x8, so there is one function, of two names: Clang calls both.
#if defined(__aarch64__)
    .text
    .globl objc_msgSend
    .type objc_msgSend, %function
    .globl objc_msgSend_stret
    .type objc_msgSend_stret, %function
    .p2align 4
objc_msgSend:
objc_msgSend_stret:
    .cfi_startproc
    cbz x0, 2f
    tst x0, #7
    b.ne 1f
    tst x0, #63                     // kMemoryAlignment
    b.eq 1f
    ldr x9, [x0]                    // objc_object::isa
    ldr x9, [x9, #64]               // objc_class::table
    cbz x9, 1f
    ldr x10, [x1]                   // objc_selector::index
    ldr x11, [x9], #8               // DispatchTable::count
    cmp x10, x11
    b.hs 1f
    ldr x9, [x9, x10, lsl #3]       // DispatchTable::functions
    cbz x9, 1f
    br x9
1:
    stp x29, x30, [sp, #-16]!
    .cfi_def_cfa_offset 16
    .cfi_offset x29, -16
    .cfi_offset x30, -8
    mov x29, sp
    .cfi_def_cfa_register x29
    sub sp, sp, #208
    stp x0, x1, [sp]
    stp x2, x3, [sp, #16]
    stp x4, x5, [sp, #32]
    stp x6, x7, [sp, #48]
    str x8, [sp, #64]
    stp q0, q1, [sp, #80]
    stp q2, q3, [sp, #112]
    stp q4, q5, [sp, #144]
    stp q6, q7, [sp, #176]
    bl metalops_objc_lookup
    mov x9, x0
    ldp x0, x1, [sp]
    ldp x2, x3, [sp, #16]
    ldp x4, x5, [sp, #32]
    ldp x6, x7, [sp, #48]
    ldr x8, [sp, #64]
    ldp q0, q1, [sp, #80]
    ldp q2, q3, [sp, #112]
    ldp q4, q5, [sp, #144]
    ldp q6, q7, [sp, #176]
    mov sp, x29
    ldp x29, x30, [sp], #16
    .cfi_def_cfa sp, 0
    .cfi_restore x29
    .cfi_restore x30
    br x9
2:
    mov x1, #0
    movi v0.2d, #0
    movi v1.2d, #0
    movi v2.2d, #0
    movi v3.2d, #0
    ret
    .cfi_endproc
    .size objc_msgSend, . - objc_msgSend
    .size objc_msgSend_stret, . - objc_msgSend_stret
#endif
    .section .note.GNU-stack,"",%progbits
