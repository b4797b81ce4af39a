//! What `plugin.c` offers: all that asks QEMU.

#[cfg(not(test))]
extern "C" {
    /// Physical address of the access being reported; all ones for devices. In `plugin.c`.
    pub fn lab_host_translate(info: u32, address: u64) -> u64;
    /// The value that the access being reported loaded, if it is of 32 or 64 bits. In `plugin.c`.
    pub fn lab_host_value(info: u32, value: *mut u64) -> bool;
    /// The memory that host and guest share, and its bytes; null if there is none. In `plugin.c`.
    pub fn lab_host_shared(bytes: *mut u64) -> *mut u8;
    /// Reads guest memory by its address as the executing vCPU translates it; false where nothing
    /// is mapped. In `plugin.c`.
    pub fn lab_host_read(address: u64, into: *mut u8, bytes: usize) -> bool;
    /// Where the kernel's own area of the executing vCPU begins, seen from user mode; zero if
    /// that is not known. In `plugin.c`.
    pub fn lab_host_kernel_area() -> u64;
    /// Guest time at a time of the model, nanoseconds. In `plugin.c`.
    pub fn lab_host_guest_ns(modelled_ns: u64) -> i64;
}

/// In place of `plugin.c`, which tests are not linked with.
#[cfg(test)]
pub unsafe fn lab_host_translate(_info: u32, address: u64) -> u64 {
    address
}

/// In place of `plugin.c`.
#[cfg(test)]
pub unsafe fn lab_host_value(_info: u32, _value: *mut u64) -> bool {
    false
}

/// In place of `plugin.c`: no memory is shared.
#[cfg(test)]
pub unsafe fn lab_host_shared(_bytes: *mut u64) -> *mut u8 {
    std::ptr::null_mut()
}

/// In place of `plugin.c`.
#[cfg(test)]
pub unsafe fn lab_host_read(_address: u64, _into: *mut u8, _bytes: usize) -> bool {
    false
}

/// In place of `plugin.c`.
#[cfg(test)]
pub unsafe fn lab_host_kernel_area() -> u64 {
    0
}

/// In place of `plugin.c`.
#[cfg(test)]
pub unsafe fn lab_host_guest_ns(modelled_ns: u64) -> i64 {
    modelled_ns as i64
}

/// Bytes of guest memory at `offset` from `start`, as the executing vCPU translates them.
pub fn read_guest<const N: usize>(start: u64, offset: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    // SAFETY: a callback of a vCPU is running, and `bytes` has the length that is given.
    unsafe { lab_host_read(start.wrapping_add(offset), bytes.as_mut_ptr(), N) }.then_some(bytes)
}
