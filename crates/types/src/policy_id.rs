//! Names of policies and of what they are compared with.
//!
//! Text becomes a [`Contender`] once, where it enters: in an argument, a file or a call from
//! Python. From there on the compiler finds every place that must know a new policy: a `match` over
//! [`PolicyId`] or [`BaselineId`] has no wildcard arm.

use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Defines a fieldless enum together with its list, names and one-line summaries.
macro_rules! named_enum {
    (
        $(#[$doc:meta])* $id:ident;
        $($variant:ident = $name:literal, $summary:literal;)*
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $id {
            $(#[doc = $summary] $variant,)*
        }

        impl $id {
            /// All, best known first.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name that commands, files and journals use.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// What it does, in one line.
            #[must_use]
            pub const fn summary(self) -> &'static str {
                match self {
                    $(Self::$variant => $summary,)*
                }
            }
        }

        impl fmt::Display for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $id {
            type Err = UnknownPolicyError;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                let found = Self::ALL.iter().copied().find(|id| id.name() == name);
                found.ok_or_else(|| UnknownPolicyError {
                    name: name.to_owned(),
                    known: Self::ALL.iter().map(|id| id.name()).collect::<Vec<_>>().join(", "),
                })
            }
        }
    };
}

named_enum! {
    /// A policy of Terrace: a function from a snapshot of a program's memory to a plan.
    PolicyId;
    Terrace = "terrace", "the default: moves pages while the predicted gain exceeds the cost";
    HyPlacer = "hyplacer", "fills the fast tier with written pages, then with read ones";
    AccessCount = "access-count", "each page to the node whose CPUs access it most";
    FirstTouch = "first-touch", "moves nothing: pages stay where the kernel put them";
    TerraceWriteBlind = "terrace-write-blind",
        "terrace without the knowledge of what is written";
    HyPlacerWriteBlind = "hyplacer-write-blind",
        "hyplacer without the knowledge of what is written";
    Nimble = "nimble", "hotter pages to the fast tier, by hotness alone (Nimble)";
    Autonuma = "autonuma", "Linux's NUMA balancing extended to tiers (tiering-0.8)";
    Memos = "memos", "bandwidth balance that knows writes, every four seconds (Memos)";
    Partitioned = "partitioned", "written pages fast, pages mostly read slow (CLOCK-DWF)";
    BandwidthBalance = "bandwidth-balance",
        "hot pages over both tiers in proportion to bandwidth (BATMAN)";
    Histogram = "histogram", "the threshold at which hot pages just fit the fast tier (MEMTIS)";
    LatencyBalance = "latency-balance",
        "hot pages fast only while that tier is faster under load (Colloid)";
}

named_enum! {
    /// What policies are compared with: the kernel by itself, hardware, and oracles.
    BaselineId;
    KernelNumaBalancing = "kernel:numa-balancing",
        "the kernel's tiering mode with demotion, stock settings";
    KernelNumaBalancingTuned = "kernel:numa-balancing-tuned", "the same, scanning more often";
    KernelDamos = "kernel:damos", "DAMON schemes migrate_hot and migrate_cold";
    KernelDamosTuned = "kernel:damos-tuned", "the same with the best settings of a grid";
    KernelWeightedInterleave = "kernel:weighted-interleave",
        "pages in turn over all nodes, weighted by bandwidth";
    KernelReclaim = "kernel:reclaim", "proactive reclaim demotes, NUMA balancing promotes";
    MemoryMode = "hardware:memory-mode",
        "the fast node is a direct-mapped cache of the slow one";
    IdealMove = "bound:ideal-move",
        "oracle: the best static placement, moved once, cost included";
    StaticPlacement = "bound:static", "oracle: the best static placement from the start";
    Clairvoyant = "bound:clairvoyant", "oracle: knows which pages will be accessed next";
    AllFast = "bound:all-fast", "bound: every access at the fast node's figures";
}

/// Who acts in a baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BaselineKind {
    /// The kernel by itself.
    Kernel,
    /// The machine, without software.
    Hardware,
    /// Somebody who knows more than a policy can.
    Oracle,
}

impl BaselineId {
    /// Who acts.
    #[must_use]
    pub const fn kind(self) -> BaselineKind {
        match self {
            Self::KernelNumaBalancing
            | Self::KernelNumaBalancingTuned
            | Self::KernelDamos
            | Self::KernelDamosTuned
            | Self::KernelWeightedInterleave
            | Self::KernelReclaim => BaselineKind::Kernel,
            Self::MemoryMode => BaselineKind::Hardware,
            Self::IdealMove | Self::StaticPlacement | Self::Clairvoyant | Self::AllFast => {
                BaselineKind::Oracle
            }
        }
    }
}

/// Before the name of a store that lies behind the best tier's memory, as `terrace run --far` has.
pub const FAR_STORE_PREFIX: &str = "far:";

/// What one row of a comparison runs under. As text, and in JSON, it is its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Contender {
    /// A policy of Terrace.
    Policy(PolicyId),
    /// What policies are compared with.
    Baseline(BaselineId),
    /// The program in the best tier's memory, with the store of this name behind it.
    FarStore(String),
    /// What only the caller knows, by the name that the caller gives it: a policy of a program that
    /// embeds Terrace, an allocation policy of memory pools. Text is never read as one.
    Custom(String),
}

impl Contender {
    /// All that have fixed names, policies first.
    pub fn all() -> impl Iterator<Item = Self> {
        let policies = PolicyId::ALL.iter().copied().map(Self::Policy);
        policies.chain(BaselineId::ALL.iter().copied().map(Self::Baseline))
    }

    /// Whether this is the placement by first touch, to which results are compared.
    #[must_use]
    pub fn is_first_touch(&self) -> bool {
        *self == Self::Policy(PolicyId::FirstTouch)
    }
}

impl From<PolicyId> for Contender {
    fn from(id: PolicyId) -> Self {
        Self::Policy(id)
    }
}

impl From<BaselineId> for Contender {
    fn from(id: BaselineId) -> Self {
        Self::Baseline(id)
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy(id) => id.fmt(f),
            Self::Baseline(id) => id.fmt(f),
            Self::FarStore(store) => f.pad(&format!("{FAR_STORE_PREFIX}{store}")),
            Self::Custom(name) => f.pad(name),
        }
    }
}

impl FromStr for Contender {
    type Err = UnknownPolicyError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        if let Some(store) = name.strip_prefix(FAR_STORE_PREFIX) {
            return Ok(Self::FarStore(store.to_owned()));
        }
        let baseline = || name.parse().map(Self::Baseline);
        name.parse().map(Self::Policy).or_else(|_| baseline()).map_err(|_| {
            let known: Vec<String> = Self::all().map(|c| c.to_string()).collect();
            UnknownPolicyError {
                name: name.to_owned(),
                known: format!("{}, {FAR_STORE_PREFIX}NAME", known.join(", ")),
            }
        })
    }
}

impl Serialize for Contender {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// No policy or baseline has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no policy is called {name:?}; give one of {known}")]
pub struct UnknownPolicyError {
    /// The text.
    pub name: String,
    /// The names that would be understood.
    pub known: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_read_back_and_is_unique() {
        let mut names: Vec<String> = Vec::new();
        for contender in Contender::all() {
            let name = contender.to_string();
            assert_eq!(name.parse(), Ok(contender));
            assert!(!names.contains(&name), "{name} stands for two");
            names.push(name);
        }
        assert_eq!(names.len(), PolicyId::ALL.len() + BaselineId::ALL.len());
        assert_eq!("far:file".parse(), Ok(Contender::FarStore("file".to_owned())));
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let error = "hyplace".parse::<PolicyId>().unwrap_err().to_string();
        assert!(error.contains("\"hyplace\"") && error.contains("hyplacer"), "{error}");
        let error = "bound:best".parse::<Contender>().unwrap_err().to_string();
        assert!(error.contains("bound:static") && error.contains("far:NAME"), "{error}");
        assert!("custom".parse::<Contender>().is_err());
    }

    #[test]
    fn baselines_are_named_after_the_actor() {
        for id in BaselineId::ALL {
            let prefix = match id.kind() {
                BaselineKind::Kernel => "kernel:",
                BaselineKind::Hardware => "hardware:",
                BaselineKind::Oracle => "bound:",
            };
            assert!(id.name().starts_with(prefix), "{id}");
        }
    }
}
