//! Where a call of `malloc` came from: the first return address outside this library, looked up
//! among the addresses that the plan's sites have in the modules loaded now.

use libc::{c_int, c_void, dl_phdr_info, size_t};
use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering::*};
use terrace_alloc::arena::plan::{AllocationCondition, ArenaRule};
use terrace_sys::ForkSafeLock;

#[repr(C)]
struct Context {
    _opaque: [u8; 0],
}

type Visit = extern "C" fn(*mut Context, *mut c_void) -> c_int;

extern "C" {
    fn _Unwind_Backtrace(visit: Visit, argument: *mut c_void) -> c_int;
    fn _Unwind_GetIP(context: *mut Context) -> usize;
}

const GO_ON: c_int = 0;
const END_OF_STACK: c_int = 5;
/// Frames looked at: our own functions and the caller.
const FRAMES: usize = 32;

/// The sites of a plan, and where they are now.
pub(crate) struct Sites {
    own: (usize, usize),
    wanted: Vec<(String, u64, usize)>,
    lock: ForkSafeLock,
    /// Modules ever loaded, when `addresses` was made.
    version: AtomicU64,
    addresses: UnsafeCell<Vec<(usize, usize)>>,
}

// SAFETY: `addresses` is reached under `lock` alone.
unsafe impl Sync for Sites {}
// SAFETY: all parts may move between threads.
unsafe impl Send for Sites {}

struct Walk {
    own: (usize, usize),
    left: usize,
    found: usize,
}

extern "C" fn visit(context: *mut Context, argument: *mut c_void) -> c_int {
    // SAFETY: `argument` is the walk that `caller` passed, alive during the call.
    let walk = unsafe { &mut *argument.cast::<Walk>() };
    // SAFETY: the context is the unwinder's.
    let at = unsafe { _Unwind_GetIP(context) };
    if at < walk.own.0 || at >= walk.own.1 {
        walk.found = at;
        return END_OF_STACK;
    }
    walk.left -= 1;
    if walk.left == 0 {
        END_OF_STACK
    } else {
        GO_ON
    }
}

/// Each module: its file name, where it is loaded, its end, and how many were ever loaded.
fn modules(mut each: impl FnMut(&[u8], usize, (usize, usize), u64)) {
    unsafe extern "C" fn one<F: FnMut(&[u8], usize, (usize, usize), u64)>(
        info: *mut dl_phdr_info,
        _size: size_t,
        argument: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader's record is whole during the call, and the argument is the closure
        // passed below.
        unsafe {
            let (info, each) = (&*info, &mut *argument.cast::<F>());
            let base = info.dlpi_addr as usize;
            let (mut from, mut to) = (usize::MAX, 0);
            for header in 0..usize::from(info.dlpi_phnum) {
                let header = &*info.dlpi_phdr.add(header);
                if header.p_type == libc::PT_LOAD {
                    from = from.min(base + header.p_vaddr as usize);
                    to = to.max(base + (header.p_vaddr + header.p_memsz) as usize);
                }
            }
            let path = if info.dlpi_name.is_null() {
                &[]
            } else {
                CStr::from_ptr(info.dlpi_name).to_bytes()
            };
            let name = path.rsplit(|b| *b == b'/').next().unwrap_or(path);
            each(name, base, (from, to), info.dlpi_adds);
        }
        0
    }
    fn call<F: FnMut(&[u8], usize, (usize, usize), u64)>(each: &mut F) {
        // SAFETY: `one::<F>` gets back the closure, which outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(one::<F>), std::ptr::from_mut(each).cast()) };
    }
    call(&mut each);
}

impl Sites {
    /// The site rules among these, by their place in the list.
    pub(crate) fn new(rules: &[ArenaRule]) -> Self {
        let wanted = rules.iter().enumerate().filter_map(|(at, rule)| match &rule.when {
            AllocationCondition::Site { module, offset } => Some((module.clone(), *offset, at)),
            _ => None,
        });
        let here = visit as *const () as usize;
        let mut own = (0, 0);
        modules(|_, _, range, _| {
            if (range.0..range.1).contains(&here) {
                own = range;
            }
        });
        Self {
            own,
            wanted: wanted.collect(),
            lock: ForkSafeLock::new(),
            version: AtomicU64::new(u64::MAX),
            addresses: UnsafeCell::new(Vec::new()),
        }
    }

    /// The rule for the place that called into this library, if there is one.
    #[inline(never)]
    pub(crate) fn rule(&self) -> Option<usize> {
        let mut walk = Walk { own: self.own, left: FRAMES, found: 0 };
        // SAFETY: the walk outlives the call; `visit` looks at contexts only.
        unsafe { _Unwind_Backtrace(visit, (&raw mut walk).cast()) };
        let mut version = 0;
        modules(|_, _, _, adds| version = adds);
        if version != self.version.load(Acquire) {
            self.find(version);
        }
        let _held = self.lock.hold();
        // SAFETY: the lock is held.
        let addresses = unsafe { &*self.addresses.get() };
        let at = addresses.binary_search_by_key(&walk.found, |(address, _)| *address).ok()?;
        Some(addresses[at].1)
    }

    /// Looks the sites up in the modules loaded now.
    fn find(&self, version: u64) {
        let own_name = std::env::current_exe().ok();
        let own_name =
            own_name.as_ref().and_then(|p| p.file_name()).map(std::ffi::OsStr::as_encoded_bytes);
        let mut addresses = Vec::new();
        modules(|name, base, _, _| {
            // The loader gives the program itself no name.
            let name = if name.is_empty() { own_name.unwrap_or(name) } else { name };
            for (module, offset, rule) in &self.wanted {
                if module.as_bytes() == name {
                    addresses.push((base.wrapping_add(*offset as usize), *rule));
                }
            }
        });
        addresses.sort_unstable();
        addresses.dedup_by_key(|(address, _)| *address);
        let old = {
            let _held = self.lock.hold();
            // SAFETY: the lock is held.
            std::mem::replace(unsafe { &mut *self.addresses.get() }, addresses)
        };
        self.version.store(version, Release);
        drop(old);
    }
}
