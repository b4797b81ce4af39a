//! Wishes, built up by setters.

use crate::codes::{guard, invalid, TERRACE_OK};
use std::ffi::{c_char, c_int, CStr};
use terrace_alloc::attributes::{
    Attributes, Binding, ClassId, ClassPlacement, Index, Lifetime, Mismatch, NodeSplit, PageSize,
};

/// The fastest class of memory.
pub const TERRACE_CLASS_FASTEST: c_int = 0;
/// The slowest class of memory; -2 is the one before it.
pub const TERRACE_CLASS_SLOWEST: c_int = -1;
/// CUDA managed memory, one address for CPUs and GPUs; its indices are GPUs. It is not in the
/// ranking; ask for it by this name.
pub const TERRACE_CLASS_CUDA_MANAGED: c_int = 16384;
/// All nodes of a class.
pub const TERRACE_INDEX_ALL: c_int = -1;
/// The nodes of a class near the calling thread.
pub const TERRACE_INDEX_LOCAL: c_int = -2;
/// The kernel chooses the node of each page.
pub const TERRACE_SPLIT_OS: c_int = 0;
/// The first class while it has free memory, then the next.
pub const TERRACE_SPLIT_SPILL_OVER: c_int = 1;
/// Contiguous parts of equal size, one per node.
pub const TERRACE_SPLIT_EQUAL: c_int = 2;
/// Memory is bound when it is allocated.
pub const TERRACE_BIND_IMMEDIATE: c_int = 0;
/// Memory is bound by the next commit.
pub const TERRACE_BIND_ON_COMMIT: c_int = 1;
/// A request that cannot be met is an error; accepted memory is reserved.
pub const TERRACE_MISMATCH_ERROR: c_int = 0;
/// Other memory is accepted.
pub const TERRACE_MISMATCH_FALLBACK: c_int = 1;
/// Huge pages from 2 MiB on; from 8 MiB per node on where several nodes serve a class.
pub const TERRACE_PAGES_AUTO: c_int = 0;
/// Base pages.
pub const TERRACE_PAGES_BASE: c_int = 1;
/// Huge pages.
pub const TERRACE_PAGES_HUGE: c_int = 2;
/// Unknown lifetime.
pub const TERRACE_LIFETIME_UNKNOWN: c_int = 0;
/// The memory is freed soon.
pub const TERRACE_LIFETIME_SHORT: c_int = 1;
/// The memory is kept until the program ends.
pub const TERRACE_LIFETIME_LONG: c_int = 2;

/// The attributes of an allocation. Two threads must not change them at once.
#[derive(Debug)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct terrace_attr {
    pub(crate) inner: Attributes,
    /// Classes were named: the default one is gone.
    named: bool,
}

/// Runs `set` on the attributes behind `attr`.
///
/// # Safety
/// `attr` is null or comes from `terrace_attr_create` and not destroyed.
unsafe fn with(attr: *mut terrace_attr, set: impl FnOnce(&mut terrace_attr) -> c_int) -> c_int {
    guard(|| {
        // SAFETY: null or alive by the caller's promise; C callers share it among threads at their
        // own peril, as told.
        match unsafe { attr.as_mut() } {
            Some(attr) => set(attr),
            None => invalid("attr is null; create it with terrace_attr_create"),
        }
    })
}

/// Creates attributes: the fastest class, all its nodes, fallback, bound at once, priority 1.
///
/// # Safety
/// `out` points to a writable pointer.
#[no_mangle]
pub unsafe extern "C" fn terrace_attr_create(out: *mut *mut terrace_attr) -> c_int {
    guard(|| {
        if out.is_null() {
            return invalid("out is null");
        }
        let attr = Box::new(terrace_attr { inner: Attributes::default(), named: false });
        // SAFETY: not null, and writable by the caller's promise.
        unsafe { out.write(Box::into_raw(attr)) };
        TERRACE_OK
    })
}

/// Destroys attributes. Null is accepted. Allocations made with them stay.
///
/// # Safety
/// `attr` is null or comes from `terrace_attr_create`, and is not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn terrace_attr_destroy(attr: *mut terrace_attr) {
    if !attr.is_null() {
        // SAFETY: made by Box::into_raw in `terrace_attr_create`; given back once by the caller's
        // promise.
        drop(unsafe { Box::from_raw(attr) });
    }
}

/// Adds a class and one index of it (or TERRACE_INDEX_ALL, TERRACE_INDEX_LOCAL). The first one
/// added is preferred.
///
/// # Safety
/// `attr` comes from `terrace_attr_create`.
#[no_mangle]
pub unsafe extern "C" fn terrace_attr_add_class(
    attr: *mut terrace_attr,
    class_id: c_int,
    index: c_int,
) -> c_int {
    let set = |attr: &mut terrace_attr| {
        let Ok(class) = i16::try_from(class_id) else {
            return invalid("a class is a small number; 0 is the fastest");
        };
        let index =
            match index {
                TERRACE_INDEX_ALL => Index::All,
                TERRACE_INDEX_LOCAL => Index::Local,
                n => match u16::try_from(n) {
                    Ok(n) => Index::These(vec![n]),
                    Err(_) => return invalid(
                        "an index counts from 0, or is TERRACE_INDEX_ALL or TERRACE_INDEX_LOCAL",
                    ),
                },
            };
        if !attr.named {
            attr.inner.places.clear();
            attr.named = true;
        }
        attr.inner.places.push(ClassPlacement { class: ClassId(class), index });
        TERRACE_OK
    };
    // SAFETY: passed on.
    unsafe { with(attr, set) }
}

/// Sets the split: one of TERRACE_SPLIT_*.
///
/// # Safety
/// `attr` comes from `terrace_attr_create`.
#[no_mangle]
pub unsafe extern "C" fn terrace_attr_set_split(attr: *mut terrace_attr, split: c_int) -> c_int {
    let set = |attr: &mut terrace_attr| {
        attr.inner.split = match split {
            TERRACE_SPLIT_OS => NodeSplit::Os,
            TERRACE_SPLIT_SPILL_OVER => NodeSplit::SpillOver,
            TERRACE_SPLIT_EQUAL => NodeSplit::Equal,
            _ => return invalid("no such split; see TERRACE_SPLIT_*"),
        };
        TERRACE_OK
    };
    // SAFETY: passed on.
    unsafe { with(attr, set) }
}

/// Splits into runs of `pages` base pages over the nodes in turn.
///
/// # Safety
/// `attr` comes from `terrace_attr_create`.
#[no_mangle]
pub unsafe extern "C" fn terrace_attr_set_chunk(attr: *mut terrace_attr, pages: u64) -> c_int {
    let set = |attr: &mut terrace_attr| {
        if pages == 0 {
            return invalid("a chunk has at least one page");
        }
        attr.inner.split = NodeSplit::Chunk(pages);
        TERRACE_OK
    };
    // SAFETY: passed on.
    unsafe { with(attr, set) }
}

/// Splits into contiguous parts in these proportions, one for each class added.
///
/// # Safety
/// `attr` comes from `terrace_attr_create`; `weights` points to `count` numbers.
#[no_mangle]
pub unsafe extern "C" fn terrace_attr_set_weights(
    attr: *mut terrace_attr,
    weights: *const u32,
    count: usize,
) -> c_int {
    let set = |attr: &mut terrace_attr| {
        if weights.is_null() || count == 0 || count > 1024 {
            return invalid("give one weight for each class added");
        }
        // SAFETY: not null, and `count` numbers by the caller's promise.
        attr.inner.split =
            NodeSplit::Weighted(unsafe { std::slice::from_raw_parts(weights, count) }.to_vec());
        TERRACE_OK
    };
    // SAFETY: passed on.
    unsafe { with(attr, set) }
}

/// Sets when memory is bound: TERRACE_BIND_IMMEDIATE or TERRACE_BIND_ON_COMMIT.
///
/// # Safety
/// `attr` comes from `terrace_attr_create`.
#[no_mangle]
pub unsafe extern "C" fn terrace_attr_set_binding(
    attr: *mut terrace_attr,
    binding: c_int,
) -> c_int {
    let set = |attr: &mut terrace_attr| {
        attr.inner.binding = match binding {
            TERRACE_BIND_IMMEDIATE => Binding::Immediate,
            TERRACE_BIND_ON_COMMIT => Binding::OnCommit,
            _ => return invalid("no such binding; see TERRACE_BIND_*"),
        };
        TERRACE_OK
    };
    // SAFETY: passed on.
    unsafe { with(attr, set) }
}

/// Sets what happens on a mismatch: TERRACE_MISMATCH_ERROR or TERRACE_MISMATCH_FALLBACK.
///
/// # Safety
/// `attr` comes from `terrace_attr_create`.
#[no_mangle]
pub unsafe extern "C" fn terrace_attr_set_mismatch(
    attr: *mut terrace_attr,
    mismatch: c_int,
) -> c_int {
    let set = |attr: &mut terrace_attr| {
        attr.inner.mismatch = match mismatch {
            TERRACE_MISMATCH_ERROR => Mismatch::Error,
            TERRACE_MISMATCH_FALLBACK => Mismatch::Fallback,
            _ => return invalid("no such answer to a mismatch; see TERRACE_MISMATCH_*"),
        };
        TERRACE_OK
    };
    // SAFETY: passed on.
    unsafe { with(attr, set) }
}

/// Sets the weight in a commit. The default is 1.
///
/// # Safety
/// `attr` comes from `terrace_attr_create`.
#[no_mangle]
pub unsafe extern "C" fn terrace_attr_set_priority(
    attr: *mut terrace_attr,
    priority: u32,
) -> c_int {
    let set = |attr: &mut terrace_attr| {
        attr.inner.priority = priority;
        TERRACE_OK
    };
    // SAFETY: passed on.
    unsafe { with(attr, set) }
}

/// Sets the expected reads and writes of each byte, in one unit for all allocations. The default is
/// 1 and 1.
///
/// # Safety
/// `attr` comes from `terrace_attr_create`.
#[no_mangle]
pub unsafe extern "C" fn terrace_attr_set_intensity(
    attr: *mut terrace_attr,
    reads: f64,
    writes: f64,
) -> c_int {
    let set = |attr: &mut terrace_attr| {
        let fine = |x: f64| x.is_finite() && x >= 0.0;
        if !fine(reads) || !fine(writes) {
            return invalid("reads and writes are finite and not below zero");
        }
        (attr.inner.reads, attr.inner.writes) = (reads, writes);
        TERRACE_OK
    };
    // SAFETY: passed on.
    unsafe { with(attr, set) }
}

/// Sets the pages behind the memory: one of TERRACE_PAGES_*.
///
/// # Safety
/// `attr` comes from `terrace_attr_create`.
#[no_mangle]
pub unsafe extern "C" fn terrace_attr_set_pages(attr: *mut terrace_attr, pages: c_int) -> c_int {
    let set = |attr: &mut terrace_attr| {
        attr.inner.page_size = match pages {
            TERRACE_PAGES_AUTO => PageSize::Auto,
            TERRACE_PAGES_BASE => PageSize::Base,
            TERRACE_PAGES_HUGE => PageSize::Huge,
            _ => return invalid("no such size of pages; see TERRACE_PAGES_*"),
        };
        TERRACE_OK
    };
    // SAFETY: passed on.
    unsafe { with(attr, set) }
}

/// Sets how long the memory is kept: one of TERRACE_LIFETIME_*.
///
/// # Safety
/// `attr` comes from `terrace_attr_create`.
#[no_mangle]
pub unsafe extern "C" fn terrace_attr_set_lifetime(
    attr: *mut terrace_attr,
    lifetime: c_int,
) -> c_int {
    let set = |attr: &mut terrace_attr| {
        attr.inner.lifetime = match lifetime {
            TERRACE_LIFETIME_UNKNOWN => Lifetime::Unknown,
            TERRACE_LIFETIME_SHORT => Lifetime::Short,
            TERRACE_LIFETIME_LONG => Lifetime::Long,
            _ => return invalid("no such lifetime; see TERRACE_LIFETIME_*"),
        };
        TERRACE_OK
    };
    // SAFETY: passed on.
    unsafe { with(attr, set) }
}

/// Sets whether the memory lies in one class as a whole (1) or may be divided (0). By default it is
/// whole below 2 MiB.
///
/// # Safety
/// `attr` comes from `terrace_attr_create`.
#[no_mangle]
pub unsafe extern "C" fn terrace_attr_set_whole(attr: *mut terrace_attr, whole: c_int) -> c_int {
    let set = |attr: &mut terrace_attr| {
        attr.inner.whole = Some(whole != 0);
        TERRACE_OK
    };
    // SAFETY: passed on.
    unsafe { with(attr, set) }
}

/// For CUDA managed memory, sets whether pages move to their GPU when they are bound (1) or at the
/// first touch (0, the default). It has no effect on other memory.
///
/// # Safety
/// `attr` comes from `terrace_attr_create`.
#[no_mangle]
pub unsafe extern "C" fn terrace_attr_set_prefetch(
    attr: *mut terrace_attr,
    prefetch: c_int,
) -> c_int {
    let set = |attr: &mut terrace_attr| {
        attr.inner.prefetch = prefetch != 0;
        TERRACE_OK
    };
    // SAFETY: passed on.
    unsafe { with(attr, set) }
}

/// Sets the name of the allocation in reports. The text is copied.
///
/// # Safety
/// `attr` comes from `terrace_attr_create`; `name` is null or a C string.
#[no_mangle]
pub unsafe extern "C" fn terrace_attr_set_name(
    attr: *mut terrace_attr,
    name: *const c_char,
) -> c_int {
    let set = |attr: &mut terrace_attr| {
        if name.is_null() {
            return invalid("name is null");
        }
        // SAFETY: not null, and a C string by the caller's promise.
        attr.inner.name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        TERRACE_OK
    };
    // SAFETY: passed on.
    unsafe { with(attr, set) }
}

const _: () = assert!(TERRACE_CLASS_CUDA_MANAGED == ClassId::CUDA_MANAGED.0 as c_int);
