//! The program's own path, which the kernel takes for the translator's, and its strings.

use crate::sys;
use alloc::vec::Vec;
use core::ffi::CStr;

static mut PROGRAM: [u8; 4096] = [0; 4096];

/// What the program finds as `/proc/self/exe`; `path` ends with a zero.
pub fn remember_program(path: &[u8]) {
    let mut link = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0";
    // SAFETY: strings that end with a zero, before there is a second thread.
    unsafe {
        let file = sys::call3(sys::OPEN, path.as_ptr() as u64, 0o10000000, 0);
        let (mut left, mut at) = (file.max(0), 14 + digits(file.max(0)));
        loop {
            at -= 1;
            link[at] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                break;
            }
        }
        let into = core::ptr::addr_of_mut!(PROGRAM) as u64;
        sys::call3(sys::READLINK, link.as_ptr() as u64, into, 4095);
        sys::call3(sys::CLOSE, file as u64, 0, 0);
    }
}

pub fn digits(mut n: i64) -> usize {
    let mut count = 1;
    while n > 9 {
        n /= 10;
        count += 1;
    }
    count
}

pub fn program() -> &'static CStr {
    // SAFETY: written once, before there is a second thread; its last byte stays zero.
    unsafe { CStr::from_ptr(core::ptr::addr_of!(PROGRAM).cast()) }
}

/// A string of the program's, its zero included.
pub fn string(at: u64, most: usize) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    let mut piece = [0u8; 256];
    while all.len() < most {
        let from = at + all.len() as u64;
        let space = (4096 - (from & 4095) as usize).min(piece.len());
        let got = sys::read_memory(from, &mut piece[..space]);
        if got == 0 {
            return None;
        }
        match piece[..got].iter().position(|b| *b == 0) {
            Some(end) => {
                all.extend_from_slice(&piece[..=end]);
                return Some(all);
            }
            None => all.extend_from_slice(&piece[..got]),
        }
    }
    None
}

/// Whether a path of the program's leads to its own file, which the kernel takes for the
/// translator's.
pub fn is_own(path: u64) -> bool {
    let mut text = [0u8; 32];
    let got = sys::read_memory(path, &mut text);
    let Some(end) = text[..got].iter().position(|b| *b == 0) else { return false };
    is_own_path(&text[..end])
}

/// The same, for a path that is known.
pub fn is_own_path(path: &[u8]) -> bool {
    let Some(rest) = path.strip_prefix(b"/proc/") else { return false };
    let Some(who) = rest.strip_suffix(b"/exe") else { return false };
    // SAFETY: asks who this is.
    let own = || unsafe { sys::call3(sys::GETPID, 0, 0, 0) };
    let number = who.iter().try_fold(0i64, |all, b| {
        (b.is_ascii_digit() && all < 1 << 32).then(|| all * 10 + i64::from(b - b'0'))
    });
    who == b"self" || who == b"thread-self" || (!who.is_empty() && number == Some(own()))
}

/// Writes that path where a call asks for it; bytes written, or an error number.
pub fn give_program(into: u64, space: u64) -> i64 {
    let path = program().to_bytes();
    let path = &path[..path.len().min(space as usize)];
    if sys::write_memory(into, path) {
        path.len() as i64
    } else {
        -sys::EFAULT
    }
}
