//! System calls by number. The names of the C library, `syscall(2)` among them, are this library's
//! own here.

use libc::c_long;

/// Calls the kernel: its result, or the errno negated.
///
/// # Safety
/// The contract is that of the call.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn kernel(number: c_long, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel's calling convention (System V ABI, AMD64 supplement, A.2.1): it changes
    // rcx, r11 and the result, and memory as the call says.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a[0],
            in("rsi") a[1],
            in("rdx") a[2],
            in("r10") a[3],
            in("r8") a[4],
            in("r9") a[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Calls the kernel: its result, or the errno negated.
///
/// # Safety
/// The contract is that of the call.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn kernel(number: c_long, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel's calling convention (syscall(2), "Architecture calling conventions").
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a[0] => result,
            in("x1") a[1],
            in("x2") a[2],
            in("x3") a[3],
            in("x4") a[4],
            in("x5") a[5],
            options(nostack),
        );
    }
    result
}

/// As the C library's wrappers: -1 and `errno`.
///
/// # Safety
/// The contract is that of the call.
pub(crate) unsafe fn call(number: c_long, arguments: [usize; 6]) -> isize {
    // SAFETY: handed on.
    let result = unsafe { kernel(number, arguments) };
    if (-4095..0).contains(&result) {
        return fail(-result as i32);
    }
    result
}

/// Sets `errno`.
pub(crate) fn fail(errno: i32) -> isize {
    // SAFETY: the calling thread's own variable.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// The calling thread's `errno`.
pub(crate) fn errno() -> i32 {
    // SAFETY: the calling thread's own variable.
    unsafe { *libc::__errno_location() }
}
