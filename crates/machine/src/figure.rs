//! A figure: a value, and the evidence for it.

use serde::{Deserialize, Serialize};

/// Where a figure comes from.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// Firmware's HMAT, through sysfs or hwloc.
    Hmat,
    /// Measured on the machine.
    Measured,
    /// Written by a person in a machine file.
    Config,
    /// Shipped preset, source cited there.
    Preset,
    /// Guessed from the distance table: an order, not a quantity.
    Distance,
    /// Nothing known.
    #[default]
    Unknown,
}

impl Evidence {
    const ALL: [Self; 6] =
        [Self::Hmat, Self::Measured, Self::Config, Self::Preset, Self::Distance, Self::Unknown];

    /// Its name in machine files and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hmat => "hmat",
            Self::Measured => "measured",
            Self::Config => "config",
            Self::Preset => "preset",
            Self::Distance => "distance",
            Self::Unknown => "unknown",
        }
    }

    /// The evidence of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|e| e.name() == name)
    }
}

/// A value and where it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figure<T> {
    /// The value.
    pub value: T,
    /// Its source.
    pub evidence: Evidence,
}
