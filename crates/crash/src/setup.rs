//! Caches from their description on a command line.

use crate::memory::CacheSetup;
use terrace_cache::{Hierarchy, HierarchyError, HierarchySpec, Inclusion, LevelSpec};

/// Cores where a description names caches of its own: as many as the paper simulates.
const CORES: usize = 8;
const LINE: u64 = 64;

/// Why a description is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CacheSetupError {
    /// A level without a size and ways, or a word that is not known.
    #[error(
        "{level}: give nvc, none, unlimited or levels such as \
        32K/8+1M/16+20M/20/shared/inclusive (size, ways; shared, inclusive, exclusive, no-allocate)"
    )]
    Level {
        /// As it was given.
        level: String,
    },
    /// Levels that fit no hardware.
    #[error("{levels}: {why}")]
    Hierarchy {
        /// As they were given.
        levels: String,
        /// What does not fit.
        why: HierarchyError,
    },
}

impl CacheSetup {
    /// `nvc`, `none`, `unlimited`, or levels from the cores outwards with `+` between them, each
    /// its size, its ways and what it is besides. A level that is not shared is there for each of
    /// eight cores.
    ///
    /// # Errors
    /// [`CacheSetupError`].
    pub fn parse(text: &str) -> Result<Self, CacheSetupError> {
        match text {
            "nvc" => return Ok(Self::nvc()),
            "none" => return Ok(Self::Uncached { line: LINE }),
            "unlimited" => return Ok(Self::Unlimited { line: LINE }),
            _ => {}
        }
        let level = |part: &str| {
            parse_level(part).ok_or_else(|| CacheSetupError::Level { level: part.to_owned() })
        };
        let levels = text.split('+').map(level).collect::<Result<Vec<_>, _>>()?;
        let spec = HierarchySpec { cores: CORES, line: LINE, levels };
        match Hierarchy::new(&spec) {
            Ok(_) => Ok(Self::Levels(spec)),
            Err(why) => Err(CacheSetupError::Hierarchy { levels: text.to_owned(), why }),
        }
    }
}

fn parse_level(text: &str) -> Option<LevelSpec> {
    let mut words = text.split('/');
    let (bytes, ways) = (parse_size(words.next()?)?, words.next()?.parse().ok()?);
    let mut level = LevelSpec::new(bytes, ways, false);
    for word in words {
        match word {
            "shared" => level.shared = true,
            "inclusive" => level.inclusion = Inclusion::Inclusive,
            "exclusive" => level.inclusion = Inclusion::Exclusive,
            "no-allocate" => level.write.allocate = false,
            _ => return None,
        }
    }
    Some(level)
}

fn parse_size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.strip_suffix('K') {
        Some(digits) => (digits, 10),
        None => text.strip_suffix('M').map_or((text, 0), |digits| (digits, 20)),
    };
    let count: u64 = digits.parse().ok()?;
    count.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_are_named_or_described() {
        let paper = "256K/8/no-allocate+20M/20/shared/inclusive";
        assert_eq!(CacheSetup::parse(paper), Ok(CacheSetup::nvc()));
        assert_eq!(CacheSetup::parse("none"), Ok(CacheSetup::Uncached { line: 64 }));
        for wrong in ["big", "", "32K", "32K/8+", "32K/8/sharde", "32G/8"] {
            let error = CacheSetup::parse(wrong).unwrap_err();
            assert!(matches!(error, CacheSetupError::Level { .. }), "{wrong}: {error}");
        }
        assert!(matches!(
            CacheSetup::parse("100/7"),
            Err(CacheSetupError::Hierarchy { why: HierarchyError::Level { .. }, .. })
        ));
    }
}
