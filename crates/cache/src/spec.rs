//! What a hierarchy of caches is made of.

use crate::{GeometryError, Prefetch, Replacement};

/// How a level relates to those nearer the cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Inclusion {
    /// It fetches what they fetch; what leaves either stays in the other.
    #[default]
    Neither,
    /// It holds all that they hold: what leaves it leaves them.
    Inclusive,
    /// It holds what left them, and nothing that they hold.
    Exclusive,
}

/// What a store does to a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WritePolicy {
    /// A hit is written here and, later, back; else here and at once further out.
    pub back: bool,
    /// A miss fetches the line first; else it passes on.
    pub allocate: bool,
}

impl Default for WritePolicy {
    /// Write-back and write-allocate, as processors of today do.
    fn default() -> Self {
        Self { back: true, allocate: true }
    }
}

/// One level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LevelSpec {
    /// Bytes; for a private level, of each core's cache.
    pub bytes: u64,
    /// Ways of a set.
    pub ways: u32,
    /// One cache for all cores, else one each.
    pub shared: bool,
    /// Which line leaves.
    pub replacement: Replacement,
    /// How it relates to nearer levels.
    pub inclusion: Inclusion,
    /// What stores do.
    pub write: WritePolicy,
    /// What it fetches unasked.
    pub prefetch: Prefetch,
}

impl LevelSpec {
    /// A level with the ordinary choices.
    #[must_use]
    pub const fn new(bytes: u64, ways: u32, shared: bool) -> Self {
        Self {
            bytes,
            ways,
            shared,
            replacement: Replacement::Lru,
            inclusion: Inclusion::Neither,
            write: WritePolicy { back: true, allocate: true },
            prefetch: Prefetch::Nothing,
        }
    }
}

/// All levels, nearest the cores first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HierarchySpec {
    /// Cores.
    pub cores: usize,
    /// Bytes of a line, a power of two, in all levels.
    pub line: u64,
    /// The levels.
    pub levels: Vec<LevelSpec>,
}

/// Why a hierarchy cannot be built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HierarchyError {
    /// No cores, no levels, or more than 64 cores or 8 levels.
    Size,
    /// Lines that are no power of two.
    Line,
    /// A private level behind a shared one.
    PrivateBehindShared {
        /// Index of the private level.
        level: usize,
    },
    /// A level that writes through cannot take in what an exclusive relation hands it dirty; or the
    /// first level is said to include others.
    Mixture {
        /// Index of the level.
        level: usize,
    },
    /// One level cannot be built.
    Level {
        /// Index of the level.
        level: usize,
        /// Why.
        why: GeometryError,
    },
}

impl std::fmt::Display for HierarchyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Size => f.write_str("a hierarchy needs 1 to 64 cores and 1 to 8 levels"),
            Self::Line => f.write_str("the line size must be a power of two"),
            Self::PrivateBehindShared { level } => {
                write!(f, "level {} is private behind a shared one", level + 1)
            }
            Self::Mixture { level } => write!(
                f,
                "level {}: the first level can neither include nor exclude, and an exclusive one \
                    must write back",
                level + 1
            ),
            Self::Level { level, why } => write!(f, "level {}: {why}", level + 1),
        }
    }
}

impl std::error::Error for HierarchyError {}

impl HierarchySpec {
    pub(crate) fn check(&self) -> Result<(), HierarchyError> {
        if !(1..=64).contains(&self.cores) || !(1..=8).contains(&self.levels.len()) {
            return Err(HierarchyError::Size);
        }
        if !self.line.is_power_of_two() {
            return Err(HierarchyError::Line);
        }
        for (level, spec) in self.levels.iter().enumerate() {
            if level > 0 && self.levels[level - 1].shared && !spec.shared {
                return Err(HierarchyError::PrivateBehindShared { level });
            }
            let exclusive = spec.inclusion == Inclusion::Exclusive;
            if level == 0 && spec.inclusion != Inclusion::Neither || exclusive && !spec.write.back {
                return Err(HierarchyError::Mixture { level });
            }
        }
        Ok(())
    }
}
