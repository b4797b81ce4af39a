//! Caches from their description on a command line.

use crate::memory::CacheSetup;
use terrace_cache::{Hierarchy, HierarchyError, HierarchySpec, Inclusion, LevelSpec};

/// Cores where a description names caches of its own: as many as the paper simulates.
const CORES: usize = 8;
const LINE: u64 = 64;
/// Of caches at most, all together, as in `terrace-model`: a host keeps an eighth.
const MOST_BYTES: u64 = 4 << 30;

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
    /// Levels that are larger than a host can model.
    #[error("{levels}: {all} bytes of caches, those of {CORES} cores together; {MOST_BYTES} work")]
    TooLarge {
        /// As they were given.
        levels: String,
        /// Of all cores together.
        all: u64,
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
        let copies = |l: &LevelSpec| if l.shared { 1 } else { CORES as u64 };
        let all = levels
            .iter()
            .fold(0u64, |sum, level| sum.saturating_add(level.bytes.saturating_mul(copies(level))));
        if all > MOST_BYTES {
            return Err(CacheSetupError::TooLarge { levels: text.to_owned(), all });
        }
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
    fn caches_larger_than_a_host_can_model_are_refused() {
        let error = CacheSetup::parse("1000000M/8").unwrap_err();
        assert!(matches!(error, CacheSetupError::TooLarge { .. }), "{error}");
        assert!(CacheSetup::parse("64M/16+256M/16/shared").is_ok());
    }

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
