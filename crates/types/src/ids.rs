//! Names of things: processes, threads, CPUs, nodes, pages.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize,
            Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

id! {
    /// A process, as the kernel numbers it.
    Pid(i32)
}
id! {
    /// A thread, as the kernel numbers it.
    Tid(i32)
}
id! {
    /// A logical CPU by OS index.
    CpuId(u32)
}
id! {
    /// A memory node by OS index (`/sys/devices/system/node/nodeN`). Also names a *cell*:
    /// the node of the CPU that made an access.
    NodeId(u16)
}
id! {
    /// A virtual page number: virtual address divided by the base page size.
    Vpn(u64)
}

/// A half-open range `[start, end)` of virtual pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct VpnRange {
    /// First page in the range.
    pub start: Vpn,
    /// First page after the range.
    pub end: Vpn,
}

impl VpnRange {
    /// A range; empty when `end` is not after `start`.
    #[must_use]
    pub const fn new(start: Vpn, end: Vpn) -> Self {
        let end = if end.0 < start.0 { start } else { end };
        Self { start, end }
    }

    /// Pages in the range.
    #[must_use]
    pub const fn len(self) -> u64 {
        self.end.0 - self.start.0
    }

    /// Whether no page is in the range.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.end.0 == self.start.0
    }

    /// Whether `page` is in the range.
    #[must_use]
    pub const fn contains(self, page: Vpn) -> bool {
        page.0 >= self.start.0 && page.0 < self.end.0
    }

    /// The pages in both ranges, if any.
    #[must_use]
    pub fn intersect(self, other: Self) -> Option<Self> {
        let range = Self::new(self.start.max(other.start), self.end.min(other.end));
        (!range.is_empty()).then_some(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_half_open() {
        let r = VpnRange::new(Vpn(2), Vpn(4));
        assert!(r.contains(Vpn(2)) && r.contains(Vpn(3)) && !r.contains(Vpn(4)));
        assert_eq!(r.len(), 2);
        assert_eq!(r.intersect(VpnRange::new(Vpn(4), Vpn(9))), None);
        assert!(VpnRange::new(Vpn(9), Vpn(1)).is_empty());
    }
}
