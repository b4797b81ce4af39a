//! Trackers by name: which exist live and in the simulator. Text becomes a [`TrackerId`] once,
//! where it enters; from there on the compiler finds every place that must know a new one.

use terrace_sim::{PebsSettings, TrackerKind};
use terrace_track::{PerfSettings, TrackerChoice};

/// Defines the enum together with its list, names and one-line summaries: none can be left out.
macro_rules! trackers {
    ($($variant:ident = $name:literal, $summary:literal;)*) => {
        /// How accesses are seen, as `--tracker` names it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum TrackerId {
            $(#[doc = $summary] $variant,)*
        }

        impl TrackerId {
            /// All, in the order that help lists them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name that commands and journals use.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// What it sees, in one line.
            #[must_use]
            pub const fn summary(self) -> &'static str {
                match self {
                    $(Self::$variant => $summary,)*
                }
            }
        }
    };
}

trackers! {
    Auto = "auto", "all that work here and that the policy can use";
    PageTable = "page-table", "accessed and dirty bits, page by page (sim: with soft-dirty)";
    SoftDirty = "soft-dirty", "writes page by page, by soft-dirty bits";
    Damon = "damon", "reads and writes by region, by the kernel's DAMON";
    DamonPage = "damon-page", "the same in regions of one page";
    Perf = "perf", "samples of loads and stores by the processor, with who made them";
    Pebs = "pebs", "samples of accesses, as the processor's hardware takes them";
}

impl TrackerId {
    /// The tracker of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|id| id.name() == name)
    }

    /// The tracker of a running program, with its usual settings; `None`: the simulator's alone.
    #[must_use]
    pub fn live(self) -> Option<TrackerChoice> {
        match self {
            Self::Auto => Some(TrackerChoice::Auto),
            Self::PageTable => Some(TrackerChoice::PageTable),
            Self::SoftDirty => Some(TrackerChoice::SoftDirty),
            Self::Damon => Some(TrackerChoice::Damon),
            Self::DamonPage => Some(TrackerChoice::DamonPage),
            Self::Perf => Some(TrackerChoice::Perf(PerfSettings::default())),
            Self::Pebs => None,
        }
    }

    /// The tracker of a simulated program, with its usual settings; `None`: it is not simulated.
    #[must_use]
    pub const fn simulated(self) -> Option<TrackerKind> {
        match self {
            Self::PageTable => Some(TrackerKind::PageTable),
            Self::Damon => Some(TrackerKind::Damon),
            Self::Pebs => Some(TrackerKind::Pebs(PebsSettings::DEFAULT)),
            Self::Auto | Self::SoftDirty | Self::DamonPage | Self::Perf => None,
        }
    }

    /// Names of all for which `usable` holds, for people.
    pub(crate) fn names(usable: impl Fn(Self) -> bool) -> String {
        let names = Self::ALL.iter().filter(|id| usable(**id)).map(|id| id.name());
        names.collect::<Vec<_>>().join(", ")
    }
}
