//! The periodic policies of others as one type: which of them it is, with its parameters. What they
//! share is in [`paced`](super::paced).

use super::paced::State;
use super::{
    autonuma, bandwidth_balance, histogram, latency_balance, memos, nimble, partitioned,
    PolicyNeeds, SetError,
};
use serde::{Deserialize, Serialize};
use terrace_types::{Plan, PolicyId, Seed, Snapshot, Tick};

macro_rules! rules {
    ($($variant:ident, $module:ident;)*) => {
        /// One of the periodic policies, with its parameters.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "rule", rename_all = "snake_case")]
        pub enum Rule {
            $(
                #[doc = concat!("See [`", stringify!($module), "`](super::", stringify!($module),
                    ").")]
                $variant($module::Params),
            )*
        }

        impl Rule {
            /// Which policy it is.
            pub(crate) const fn id(&self) -> PolicyId {
                match self {
                    $(Self::$variant(_) => PolicyId::$variant,)*
                }
            }

            pub(crate) fn params(&self) -> Vec<(&'static str, String)> {
                match self {
                    $(Self::$variant(p) => p.named(),)*
                }
            }

            pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), SetError> {
                match self {
                    $(Self::$variant(p) => p.set(name, value),)*
                }
            }

            pub(crate) fn step(&self, state: &mut State, snap: &Snapshot, now: Tick,
                seed: Seed) -> Plan {
                match self {
                    $(Self::$variant(p) => $module::step(p, state, snap, now, seed),)*
                }
            }
        }
    };
}

rules! {
    Nimble, nimble;
    Autonuma, autonuma;
    Memos, memos;
    Partitioned, partitioned;
    BandwidthBalance, bandwidth_balance;
    Histogram, histogram;
    LatencyBalance, latency_balance;
}

impl Rule {
    pub(crate) fn needs(&self) -> PolicyNeeds {
        let writes = matches!(self, Self::Partitioned(_) | Self::Memos(_));
        PolicyNeeds { heat: true, writes, ..PolicyNeeds::default() }
    }
}
