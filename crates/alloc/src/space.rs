//! Address space: few large regions, each bound to one set of nodes as a whole, and objects cut
//! from them by page. So the kernel keeps one mapping for thousands of objects.

use crate::attributes::Lifetime;
use crate::kernel::AllocatorKernel;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use terrace_sys::{MemPolicy, SysError};
use terrace_types::Bytes;

/// What objects of a region have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kind {
    /// Where untouched pages come from; [`MemPolicy::Default`] for what is not bound yet, or bound
    /// piece by piece.
    pub policy: MemPolicy,
    /// Huge pages are welcome.
    pub huge: bool,
    pub lifetime: Lifetime,
}

/// Regions, largest first in what is tried: address space costs nothing, but a limit on it may be
/// set.
const REGION_SIZES: [u64; 3] = [16 << 30, 1 << 30, 64 << 20];
const HUGE: usize = 2 << 20;

/// Free ranges by start and by size.
#[derive(Debug, Default)]
struct Free {
    by_start: BTreeMap<usize, usize>,
    by_size: BTreeSet<(usize, usize)>,
}

impl Free {
    fn put(&mut self, mut range: Range<usize>) {
        if let Some((&start, &end)) = self.by_start.range(..range.start).next_back() {
            if end == range.start {
                self.drop(start..end);
                range.start = start;
            }
        }
        if let Some(&end) = self.by_start.get(&range.end) {
            self.drop(range.end..end);
            range.end = end;
        }
        self.by_start.insert(range.start, range.end);
        self.by_size.insert((range.len(), range.start));
    }

    fn drop(&mut self, range: Range<usize>) {
        self.by_start.remove(&range.start);
        self.by_size.remove(&(range.len(), range.start));
    }

    /// The smallest free range that holds `len` bytes at a multiple of `align`.
    fn take(&mut self, len: usize, align: usize) -> Option<Range<usize>> {
        let fits =
            |(size, start): &&(usize, usize)| start.next_multiple_of(align) - start + len <= *size;
        let &(size, start) = self.by_size.range((len, 0)..).find(fits)?;
        let at = start.next_multiple_of(align);
        self.drop(start..start + size);
        if at > start {
            self.put(start..at);
        }
        if at + len < start + size {
            self.put(at + len..start + size);
        }
        Some(at..at + len)
    }
}

/// All regions.
#[derive(Debug, Default)]
pub(crate) struct Space {
    free: BTreeMap<Kind, Free>,
    pub regions: usize,
}

impl Space {
    /// `len` bytes (whole pages) of this kind.
    pub fn take(
        &mut self,
        kernel: &dyn AllocatorKernel,
        kind: &Kind,
        len: usize,
    ) -> Result<Range<usize>, SysError> {
        let align = if kind.huge { HUGE } else { kernel.page_size().get() as usize };
        let free = self.free.entry(kind.clone()).or_default();
        if let Some(range) = free.take(len, align) {
            return Ok(range);
        }
        let least = len.next_multiple_of(align) as u64;
        let sizes = REGION_SIZES.iter().copied().filter(|s| *s >= least).chain([least]);
        let mut refused = None;
        for size in sizes {
            match kernel.reserve(Bytes(size), Bytes(HUGE as u64)) {
                Ok(region) => {
                    if kind.policy != MemPolicy::Default {
                        if let Err(error) = kernel.bind(&region, &kind.policy) {
                            // Its addresses serve what is not bound.
                            kernel.huge(&region, kind.huge);
                            let unbound = Kind { policy: MemPolicy::Default, ..kind.clone() };
                            self.free.entry(unbound).or_default().put(region);
                            return Err(error);
                        }
                    }
                    // Only where it differs from what the kernel does by itself: it is a mark on
                    // the mapping.
                    kernel.huge(&region, kind.huge);
                    self.regions += 1;
                    free.put(region);
                    let taken = free.take(len, align);
                    return taken.ok_or_else(|| {
                        SysError::from_errno("mmap", format!("{len} bytes"), 12, "ask for less")
                    });
                }
                Err(error) => refused = Some(error),
            }
        }
        Err(refused.unwrap_or_else(|| {
            SysError::from_errno("mmap", format!("{len} bytes"), 12, "ask for less")
        }))
    }

    /// Takes back what [`Space::take`] gave; its pages must have been given back to the kernel.
    pub fn put(&mut self, kind: &Kind, range: Range<usize>) {
        self.free.entry(kind.clone()).or_default().put(range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_ranges_join_and_are_found_by_size() {
        let mut free = Free::default();
        free.put(0x1000..0x9000);
        let a = free.take(0x1000, 0x1000).unwrap();
        let b = free.take(0x2000, 0x1000).unwrap();
        let c = free.take(0x1000, 0x4000).unwrap();
        assert_eq!(
            (a.clone(), b.clone(), c.clone()),
            (0x1000..0x2000, 0x2000..0x4000, 0x4000..0x5000)
        );
        assert_eq!(free.take(0x5000, 0x1000), None);
        for range in [b, a, c] {
            free.put(range);
        }
        assert_eq!(free.by_start.len(), 1);
        assert_eq!(free.take(0x8000, 0x1000), Some(0x1000..0x9000));
        assert!(free.by_size.is_empty() && free.by_start.is_empty());
    }
}
