//! What the kernel shows of this process to others: `/proc/PID/cmdline`, `environ` and `auxv`
//! become the program's in place of the translator's (prctl(2), `PR_SET_MM_MAP`).

use crate::sys;
use alloc::vec::Vec;

const PR_SET_MM: u64 = 35;
const PR_SET_MM_MAP: u64 = 14;

/// The kernel's `struct prctl_mm_map`.
#[repr(C)]
#[derive(Default)]
struct MemoryMap {
    start_code: u64,
    end_code: u64,
    start_data: u64,
    end_data: u64,
    start_break: u64,
    end_break: u64,
    start_stack: u64,
    start_arguments: u64,
    end_arguments: u64,
    start_environment: u64,
    end_environment: u64,
    auxiliary: u64,
    auxiliary_bytes: u32,
    program_file: u32,
}

/// Moves the program's name in front of its arguments, over the translator's own, which lie before:
/// then all are in a row, as the kernel lays them. `first` is the first of the translator's
/// arguments, `behind` where the program's begin behind its path. Where the name lies now.
///
/// # Safety
/// Strings of the kernel's stack from `first` to `behind` that nobody else uses any more.
pub unsafe fn move_name(first: u64, behind: u64, name: &[u8]) -> Option<u64> {
    let at = behind.checked_sub(name.len() as u64).filter(|at| *at >= first)?;
    // SAFETY: within the translator's own arguments; `name` is a copy.
    unsafe { core::ptr::copy_nonoverlapping(name.as_ptr(), at as *mut u8, name.len()) };
    Some(at)
}

/// Shows these strings and values. Where the kernel refuses, it goes on to show the translator's.
pub fn show(arguments: [u64; 2], environment: [u64; 2], auxiliary: &[u64], stack: u64) {
    let fields = own_fields();
    let field = |n: usize| fields.get(n - 1).copied().unwrap_or(0);
    // SAFETY: asks where the heap ends.
    let end_break = unsafe { sys::call3(sys::BRK, 0, 0, 0) } as u64;
    // Numbered as in proc_pid_stat(5).
    let map = MemoryMap {
        start_code: field(26),
        end_code: field(27),
        start_data: field(45),
        end_data: field(46),
        start_break: field(47),
        end_break,
        start_stack: stack,
        start_arguments: arguments[0],
        end_arguments: arguments[1],
        start_environment: environment[0],
        end_environment: environment[1],
        auxiliary: auxiliary.as_ptr() as u64,
        auxiliary_bytes: core::mem::size_of_val(auxiliary) as u32,
        program_file: u32::MAX,
    };
    let (at, bytes) = (&map as *const MemoryMap as u64, core::mem::size_of::<MemoryMap>() as u64);
    // SAFETY: the kernel reads the structure and the values.
    unsafe { sys::call(sys::PRCTL, [PR_SET_MM, PR_SET_MM_MAP, at, bytes, 0, 0]) };
}

/// The numbers of `/proc/self/stat`; zeros for the first three, of which two are none.
fn own_fields() -> Vec<u64> {
    let mut text = [0u8; 2048];
    // SAFETY: a string that ends with a zero, and space for the answer.
    let got = unsafe {
        let file = sys::call3(sys::OPEN, c"/proc/self/stat".as_ptr() as u64, 0o2000000, 0);
        if file < 0 {
            return Vec::new();
        }
        let got = sys::call3(sys::READ, file as u64, text.as_mut_ptr() as u64, text.len() as u64);
        sys::call3(sys::CLOSE, file as u64, 0, 0);
        got.max(0) as usize
    };
    let behind = text[..got].iter().rposition(|b| *b == b')').map_or(got, |at| at + 1);
    let words = text[behind..got].split(|b| b.is_ascii_whitespace()).filter(|w| !w.is_empty());
    let number = |word: &[u8]| {
        word.iter()
            .filter(|b| b.is_ascii_digit())
            .fold(0u64, |n, b| n.wrapping_mul(10).wrapping_add(u64::from(b - b'0')))
    };
    [0, 0].into_iter().chain(words.map(number)).collect()
}
