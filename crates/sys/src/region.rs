//! Large ranges of address space that Terrace owns, and where the kernel takes their pages from
//! (kernel: `mm/mempolicy.c`, `mm/madvise.c`).

use crate::{zones, Root, SysError};
use std::marker::PhantomData;
use std::ops::Range;
use terrace_types::{Bytes, NodeId};

/// Which nodes pages come from. None of them makes the kernel kill for want of a node's memory, as
/// `MPOL_BIND` does.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MemPolicy {
    /// The toucher's node first: the kernel's default.
    Default,
    /// These nodes while they have space, then the nearest others.
    Prefer(Vec<NodeId>),
    /// These nodes in turn, page by page.
    Interleave(Vec<NodeId>),
}

const MPOL_DEFAULT: libc::c_long = 0;
const MPOL_PREFERRED: libc::c_long = 1;
const MPOL_INTERLEAVE: libc::c_long = 3;
/// Since Linux 5.15.
const MPOL_PREFERRED_MANY: libc::c_long = 5;
/// `get_mempolicy`: the nodes that this thread may use.
const MPOL_F_MEMS_ALLOWED: libc::c_ulong = 1 << 2;
/// Nodes that a mask of ours can name.
const MASK_NODES: usize = 1024;
const MADV_POPULATE_WRITE: libc::c_int = 23;

type Mask = [libc::c_ulong; MASK_NODES / libc::c_ulong::BITS as usize];

fn mask(nodes: &[NodeId]) -> Mask {
    let mut mask: Mask = [0; MASK_NODES / libc::c_ulong::BITS as usize];
    for node in nodes {
        let at = usize::from(node.0);
        if let Some(word) = mask.get_mut(at / libc::c_ulong::BITS as usize) {
            *word |= 1 << (at % libc::c_ulong::BITS as usize);
        }
    }
    mask
}

impl MemPolicy {
    /// Why the kernel did not set this policy, unless that makes no difference: a refusal does not
    /// matter where the policy names the only node with memory, or is the default beside one node.
    pub(crate) fn needless(&self, error: SysError) -> Result<(), SysError> {
        let present = zones::nodes_with_memory(&Root::live());
        let [only] = present.as_slice() else { return Err(error) };
        let same = match self {
            Self::Default => true,
            Self::Prefer(nodes) | Self::Interleave(nodes) => {
                !nodes.is_empty() && nodes.iter().all(|node| node == only)
            }
        };
        if error.is_refusal() && same {
            return Ok(());
        }
        Err(error)
    }

    fn mode(&self) -> (libc::c_long, Mask) {
        match self {
            Self::Default => (MPOL_DEFAULT, mask(&[])),
            Self::Prefer(nodes) if nodes.len() == 1 => (MPOL_PREFERRED, mask(nodes)),
            Self::Prefer(nodes) => (MPOL_PREFERRED_MANY, mask(nodes)),
            Self::Interleave(nodes) => (MPOL_INTERLEAVE, mask(nodes)),
        }
    }

    /// The nearest thing on a kernel that does not prefer several nodes.
    fn older(&self) -> Option<Self> {
        match self {
            Self::Prefer(nodes) if nodes.len() > 1 => Some(Self::Prefer(nodes[..1].to_vec())),
            _ => None,
        }
    }
}

/// Runs `call` with the policy's mode and mask, and with what older kernels know where it is
/// refused as unknown.
fn with_mode(
    policy: &MemPolicy,
    call: impl Fn(libc::c_long, *const libc::c_ulong, libc::c_ulong) -> libc::c_long,
) -> bool {
    let run = |policy: &MemPolicy| {
        let (mode, mask) = policy.mode();
        // The kernel reads one bit fewer than it is given.
        let bits = MASK_NODES as libc::c_ulong + 1;
        match policy {
            MemPolicy::Default => call(mode, std::ptr::null(), 0) == 0,
            _ => call(mode, mask.as_ptr(), bits) == 0,
        }
    };
    if run(policy) {
        return true;
    }
    let unknown = std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL);
    unknown && policy.older().is_some_and(|older| run(&older))
}

/// Private zeroed memory, mapped when touched and never charged before. Given back when dropped.
///
/// Nothing here reads or writes it; whoever makes pointers of its addresses answers for them.
#[derive(Debug)]
pub struct Region {
    start: usize,
    len: usize,
}

impl Region {
    /// Address space of `len` bytes that begins at a multiple of `align` (a power of two, at least
    /// a page).
    ///
    /// # Errors
    /// When the address space or the limit on it (`RLIMIT_AS`) is used up.
    pub fn reserve(len: Bytes, align: Bytes) -> Result<Self, SysError> {
        let page = crate::page_size().get();
        let fail = |errno| {
            SysError::from_errno("mmap", format!("{len}"), errno, "raise ulimit -v or free memory")
        };
        let align = align.get().max(page);
        let rounded = len.get().max(1).checked_next_multiple_of(page);
        let spanned = rounded.and_then(|len| len.checked_add(align));
        let (Some(len), Some(span)) = (rounded, spanned.and_then(|s| usize::try_from(s).ok()))
        else {
            return Err(fail(libc::ENOMEM));
        };
        let (len, align) = (len as usize, align as usize);
        // SAFETY: a new private mapping at an address of the kernel's choice; no memory of ours is
        // touched.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                span,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(fail(
                std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOMEM),
            ));
        }
        let first = at as usize;
        let start = first.next_multiple_of(align);
        let (before, after) = (start - first, first + span - (start + len));
        // SAFETY: both parts lie within the mapping made above, which nobody else knows of yet.
        unsafe {
            if before > 0 {
                libc::munmap(first as *mut libc::c_void, before);
            }
            if after > 0 {
                libc::munmap((start + len) as *mut libc::c_void, after);
            }
        }
        Ok(Self { start, len })
    }

    /// Its addresses.
    #[must_use]
    pub const fn range(&self) -> Range<usize> {
        self.start..self.start + self.len
    }

    /// `part` where it lies within; otherwise empty.
    fn within(&self, part: &Range<usize>) -> (*mut libc::c_void, usize) {
        let start = part.start.clamp(self.start, self.start + self.len);
        let end = part.end.clamp(start, self.start + self.len);
        (start as *mut libc::c_void, end - start)
    }

    fn fail(&self, call: &'static str, part: &Range<usize>, remedy: &'static str) -> SysError {
        SysError::last(call, format!("{:#x}..{:#x}", part.start, part.end), remedy)
    }

    /// Future pages of `part` come from where `policy` says; pages that are there stay.
    ///
    /// # Errors
    /// When a node does not exist or may not be used, or there are too many mappings
    /// (`vm.max_map_count`).
    pub fn bind(&self, part: &Range<usize>, policy: &MemPolicy) -> Result<(), SysError> {
        let (at, len) = self.within(part);
        let done = with_mode(policy, |mode, mask, bits| {
            // SAFETY: the range lies within this mapping; the mask holds the bits stated and
            // outlives the call. Pages keep their content whatever the policy.
            unsafe { libc::syscall(libc::SYS_mbind, at, len, mode, mask, bits, 0) }
        });
        if done {
            return Ok(());
        }
        policy.needless(self.fail(
            "mbind",
            part,
            "see terrace doctor; raise vm.max_map_count when there are too many mappings",
        ))
    }

    /// Huge pages are welcome in `part` (or, with `false`, are not).
    ///
    /// # Errors
    /// On a kernel without transparent huge pages.
    pub fn huge(&self, part: &Range<usize>, welcome: bool) -> Result<(), SysError> {
        let advice = if welcome { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
        self.advise("madvise huge pages", part, advice)
    }

    /// Gives the pages of `part` back; it reads as zeroes afterwards. Its policy stays.
    ///
    /// # Errors
    /// When the memory is locked.
    pub fn discard(&self, part: &Range<usize>) -> Result<(), SysError> {
        self.advise("madvise", part, libc::MADV_DONTNEED)
    }

    /// Makes all pages of `part` present, content unchanged, new ones from where `policy` says
    /// while the call lasts. The part's own policy, where it has one, goes first.
    ///
    /// # Errors
    /// When memory runs out; on kernels before 5.14.
    pub fn populate(&self, part: &Range<usize>, policy: &MemPolicy) -> Result<(), SysError> {
        let set = thread_policy().and_then(|before| set_thread_policy(policy).map(|()| before));
        let before = match set {
            Ok(before) => before,
            Err(error) => {
                policy.needless(error)?;
                return self.advise("madvise populate", part, MADV_POPULATE_WRITE);
            }
        };
        let done = self.advise("madvise populate", part, MADV_POPULATE_WRITE);
        let back = before.restore();
        done.and(back)
    }

    fn advise(
        &self,
        call: &'static str,
        part: &Range<usize>,
        advice: libc::c_int,
    ) -> Result<(), SysError> {
        let (at, len) = self.within(part);
        loop {
            // SAFETY: the range lies within this mapping. MADV_DONTNEED drops content: that is what
            // the caller of `discard` asks for, and this type hands out no references to it.
            if unsafe { libc::madvise(at, len, advice) } == 0 {
                return Ok(());
            }
            let errno = std::io::Error::last_os_error().raw_os_error();
            if errno != Some(libc::EINTR) && errno != Some(libc::EAGAIN) {
                return Err(self.fail(call, part, "the kernel lacks this advice or the memory"));
            }
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping and nothing else; who kept addresses of it was told not
        // to use them.
        unsafe { libc::munmap(self.start as *mut libc::c_void, self.len) };
    }
}

/// A thread's policy as the kernel keeps it, to be put back.
struct ThreadPolicy {
    mode: libc::c_int,
    mask: Mask,
}

impl ThreadPolicy {
    fn restore(&self) -> Result<(), SysError> {
        let empty = self.mask.iter().all(|w| *w == 0);
        let (mask, bits) =
            if empty { (std::ptr::null(), 0) } else { (self.mask.as_ptr(), MASK_NODES as u64 + 1) };
        // SAFETY: the mask holds the bits stated (or is null with none) and outlives the call.
        let done = unsafe {
            libc::syscall(libc::SYS_set_mempolicy, libc::c_long::from(self.mode), mask, bits)
        };
        if done == 0 {
            return Ok(());
        }
        Err(SysError::last(
            "set_mempolicy",
            "this thread",
            "its memory policy could not be put back",
        ))
    }
}

fn thread_policy() -> Result<ThreadPolicy, SysError> {
    let mut policy = ThreadPolicy { mode: 0, mask: mask(&[]) };
    // SAFETY: mode and mask are writable, the mask holds the bits stated; address 0 without flags
    // asks for the thread's.
    let done = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            std::ptr::from_mut(&mut policy.mode),
            policy.mask.as_mut_ptr(),
            MASK_NODES as libc::c_ulong + 1,
            0_usize,
            0_usize,
        )
    };
    if done == 0 {
        return Ok(policy);
    }
    Err(SysError::last("get_mempolicy", "this thread", "boot a kernel with CONFIG_NUMA"))
}

fn set_thread_policy(policy: &MemPolicy) -> Result<(), SysError> {
    let done = with_mode(policy, |mode, mask, bits| {
        // SAFETY: the mask holds the bits stated (or is null with none) and outlives the call.
        unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask, bits) }
    });
    if done {
        return Ok(());
    }
    Err(SysError::last("set_mempolicy", "this thread", "see terrace doctor"))
}

/// While it lives, pages that the calling thread touches first, and that the kernel takes for it
/// (page tables, its own records), come from where a policy says, except where a mapping has one of
/// its own. Threads and processes that it starts meanwhile inherit that. Then the thread has its
/// former policy again; the pages stay.
pub struct ThreadMemory {
    before: ThreadPolicy,
    /// The policy is this thread's.
    thread: PhantomData<*const ()>,
}

impl std::fmt::Debug for ThreadMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadMemory").field("mode_before", &self.before.mode).finish()
    }
}

impl ThreadMemory {
    /// Begins for the calling thread.
    ///
    /// # Errors
    /// What the kernel said: no such node, one outside the cpuset, no NUMA.
    pub fn from(policy: &MemPolicy) -> Result<Self, SysError> {
        let before = thread_policy()?;
        set_thread_policy(policy)?;
        Ok(Self { before, thread: PhantomData })
    }
}

impl Drop for ThreadMemory {
    fn drop(&mut self) {
        // It was this thread's before, so the kernel takes it again unless the cpuset changed: then
        // its own default is left.
        let _ = self.before.restore();
    }
}

/// The nodes that this thread may take memory from (its cpuset), ascending.
///
/// # Errors
/// On a kernel without NUMA.
pub fn allowed_nodes() -> Result<Vec<NodeId>, SysError> {
    let mut words = mask(&[]);
    // SAFETY: the mask is writable and holds the bits stated; mode may be null with this flag.
    let done = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            std::ptr::null_mut::<libc::c_int>(),
            words.as_mut_ptr(),
            MASK_NODES as libc::c_ulong + 1,
            0_usize,
            MPOL_F_MEMS_ALLOWED,
        )
    };
    if done != 0 {
        return Err(SysError::last(
            "get_mempolicy",
            "this thread",
            "boot a kernel with CONFIG_NUMA",
        ));
    }
    let set = |n: &u16| {
        let at = usize::from(*n);
        words[at / libc::c_ulong::BITS as usize] >> (at % libc::c_ulong::BITS as usize) & 1 == 1
    };
    Ok((0..MASK_NODES as u16).filter(set).map(NodeId).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{query_pages, PageStatus};
    use terrace_types::{Pid, Vpn};

    #[test]
    fn a_region_is_aligned_bound_populated_and_given_back() {
        let page = crate::page_size().get() as usize;
        let region = Region::reserve(Bytes::mib(4), Bytes::mib(2)).unwrap();
        let all = region.range();
        assert_eq!((all.start % (2 << 20), all.len()), (0, 4 << 20));
        let nodes = match allowed_nodes() {
            Ok(nodes) => nodes,
            Err(e) => return println!("skipped: {e}"),
        };
        let first = MemPolicy::Prefer(vec![nodes[0]]);
        let part = all.start..all.start + 8 * page;
        region.bind(&part, &first).unwrap();
        region.populate(&part, &first).unwrap();
        let vpn = |at: usize| Vpn((at / page) as u64);
        let on =
            query_pages(Pid(std::process::id() as i32), &[vpn(part.start), vpn(part.end)]).unwrap();
        assert!(matches!(on[0], PageStatus::On(_)), "{on:?}");
        assert!(!matches!(on[1], PageStatus::On(_)), "{on:?}");
        region.discard(&part).unwrap();
        let on = query_pages(Pid(std::process::id() as i32), &[vpn(part.start)]).unwrap();
        assert!(!matches!(on[0], PageStatus::On(_)), "{on:?}");
        assert_eq!(thread_policy().unwrap().mode, 0, "the thread's policy was not put back");
    }

    #[test]
    fn a_thread_takes_memory_elsewhere_for_a_while() {
        let nodes = match allowed_nodes() {
            Ok(nodes) => nodes,
            Err(e) => return println!("skipped: {e}"),
        };
        let elsewhere = MemPolicy::Prefer(vec![*nodes.last().unwrap()]);
        let mode = || libc::c_long::from(thread_policy().unwrap().mode);
        {
            let _outer = ThreadMemory::from(&elsewhere).unwrap();
            assert_eq!(mode(), MPOL_PREFERRED);
            {
                let _inner = ThreadMemory::from(&MemPolicy::Interleave(nodes.clone())).unwrap();
                assert_eq!(mode(), MPOL_INTERLEAVE);
            }
            assert_eq!(mode(), MPOL_PREFERRED, "what was before is put back");
        }
        assert_eq!(mode(), MPOL_DEFAULT);
        assert!(ThreadMemory::from(&MemPolicy::Prefer(vec![NodeId(1023)])).is_err());
        assert_eq!(mode(), MPOL_DEFAULT, "a refusal changes nothing");
    }

    #[test]
    fn what_is_not_there_is_refused() {
        let region = Region::reserve(Bytes::mib(1), Bytes(4096)).unwrap();
        let far = MemPolicy::Prefer(vec![NodeId(1023)]);
        assert!(region.bind(&region.range(), &far).is_err());
        assert!(Region::reserve(Bytes(u64::MAX - 5), Bytes::mib(2)).is_err());
        // Parts outside are cut off: nothing of others is touched.
        region.discard(&(0..4096)).unwrap();
    }
}
