// objc_msgSend: jumps to the method's function, with all arguments where they are. The function is
// looked up in the table of the receiver's class. What has no such table (nil, tagged pointers,
// memory of the device, methods that were not called before) takes the slow path, which saves the
// registers that arguments may be in. Arguments in AVX registers are not supported.
#if defined(__x86_64__)
    .text

.macro SEND name, receiver, low_byte, selector
    .globl \name
    .type \name, @function
    .p2align 4
\name:
    .cfi_startproc
    testq \receiver, \receiver
    jz 2f
    testb $7, \low_byte
    jnz 1f
    testb $63, \low_byte            // kMemoryAlignment: memory, or what is not of allocate()
    jz 1f
    movq (\receiver), %r10          // objc_object::isa
    movq 64(%r10), %r10             // objc_class::table
    testq %r10, %r10
    jz 1f
    movq (\selector), %r11          // objc_selector::index
    cmpq (%r10), %r11               // DispatchTable::count
    jae 1f
    movq 8(%r10,%r11,8), %r11       // DispatchTable::functions
    testq %r11, %r11
    jz 1f
    jmpq *%r11
1:
    pushq %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    movq %rsp, %rbp
    .cfi_def_cfa_register %rbp
    subq $192, %rsp
    movq %rdi, 0(%rsp)
    movq %rsi, 8(%rsp)
    movq %rdx, 16(%rsp)
    movq %rcx, 24(%rsp)
    movq %r8, 32(%rsp)
    movq %r9, 40(%rsp)
    movq %rax, 48(%rsp)             // how many vector registers a variadic call uses
    movaps %xmm0, 64(%rsp)
    movaps %xmm1, 80(%rsp)
    movaps %xmm2, 96(%rsp)
    movaps %xmm3, 112(%rsp)
    movaps %xmm4, 128(%rsp)
    movaps %xmm5, 144(%rsp)
    movaps %xmm6, 160(%rsp)
    movaps %xmm7, 176(%rsp)
    movq \selector, %rax
    movq \receiver, %rdi
    movq %rax, %rsi
    callq metalops_objc_lookup@PLT
    movq %rax, %r11
    movq 0(%rsp), %rdi
    movq 8(%rsp), %rsi
    movq 16(%rsp), %rdx
    movq 24(%rsp), %rcx
    movq 32(%rsp), %r8
    movq 40(%rsp), %r9
    movq 48(%rsp), %rax
    movaps 64(%rsp), %xmm0
    movaps 80(%rsp), %xmm1
    movaps 96(%rsp), %xmm2
    movaps 112(%rsp), %xmm3
    movaps 128(%rsp), %xmm4
    movaps 144(%rsp), %xmm5
    movaps 160(%rsp), %xmm6
    movaps 176(%rsp), %xmm7
    leave
    .cfi_def_cfa %rsp, 8
    .cfi_restore %rbp
    jmpq *%r11
2:
    movq %rdi, %rax                 // nil; for a struct in memory, its address
    xorl %edx, %edx
    pxor %xmm0, %xmm0
    pxor %xmm1, %xmm1
    retq
    .cfi_endproc
    .size \name, . - \name
.endm

    SEND objc_msgSend, %rdi, %dil, %rsi
    SEND objc_msgSend_fpret, %rdi, %dil, %rsi
    SEND objc_msgSend_stret, %rsi, %sil, %rdx
#endif
    .section .note.GNU-stack,"",%progbits
